// The deepseek_v32 and glm_moe_dsa networks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/model.h"
#include "models/checkpoint.h"
#include "models/config.h"
#include "models/mla_layer.h"
#include "models/moe_layer.h"
#include "models/mtp_head.h"

namespace strata {

// norm -> attention -> residual, norm -> MLP -> residual. Also the body of the MTP layer.
class DsaLayer {
 public:
  DsaLayer(const Checkpoint& checkpoint, const ModelConfig& config, const ModelGeometry& geometry,
           int64_t index, float softmax_scale);
  // x [rows, hidden] is the residual stream, updated in place.
  void Forward(const StepInput& step, const View<float, 2>& x, MlaStepState& state,
               SelectionGraph& graph, StepContext& context) const;
  size_t owned_bytes() const;

 private:
  float epsilon_;
  std::vector<float> attention_norm_, mlp_norm_;
  MlaLayer attention_;
  MoeLayer mlp_;
};

enum class DraftLayer : uint8_t {
  kSkip,       // the prediction layer stays in the file
  kIfPresent,  // loaded where config and checkpoint have one
  kNeeded,     // Fail(kModelFile) where they do not
};

struct LoadOptions {
  DraftLayer draft_layer = DraftLayer::kSkip;
  // Called after each layer with the share of layers loaded, 0 to 1; may be empty.
  std::function<void(double)> progress;
};

class DsaModel : public Model {
 public:
  static std::unique_ptr<DsaModel> Load(const std::filesystem::path& directory, ModelConfig config,
                                        Backend& backend, const LoadOptions& options = {});

  const ModelGeometry& geometry() const override { return geometry_; }
  const ModelConfig& config() const { return config_; }
  std::string Describe() const override;
  size_t weight_bytes() const override;
  size_t ScratchBytes(int64_t rows, int64_t logit_rows, int64_t score_elements) const override;
  StepOutput Run(const StepInput& step, StepContext& context) const override;

  bool has_draft_layer() const override { return mtp_ != nullptr; }
  bool shares_draft_selection() const override { return config_.draft_shares_selection; }
  StepOutput RunDraft(const StepInput& step, const DraftInput& input,
                      StepContext& context) const override;

 private:
  DsaModel(Checkpoint checkpoint, ModelConfig config, Backend& backend, bool mtp);

  MlaStepState BeginStep(const StepInput& step, StepContext& context) const;
  View<float, 2> Embed(const StepInput& step, StepContext& context) const;
  View<float, 2> Logits(const StepInput& step, const View<const float, 2>& normed,
                        StepContext& context) const;

  Checkpoint checkpoint_;
  ModelConfig config_;
  ModelGeometry geometry_;
  RopeFrequencies frequencies_;
  Matrix embedding_, head_;
  std::vector<float> final_norm_;
  Stream stream_;  // what workspaces are sized for
  std::vector<std::unique_ptr<DsaLayer>> layers_;
  std::unique_ptr<MtpHead> mtp_;
  std::unique_ptr<SelectionGraph> selection_;
};

// Config and geometry without weights, for plans.
ModelGeometry MakeGeometry(const ModelConfig& config, bool mtp);

}  // namespace strata
