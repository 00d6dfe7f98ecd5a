// The shipped model under another chat template: a folder of links to it.
#pragma once

#include <filesystem>
#include <string>

#include "tests/models/temporary_folder.h"

namespace strata {

class RetaughtModel {
 public:
  explicit RetaughtModel(const std::string& chat_template) {
    const std::filesystem::path shipped =
        std::filesystem::path(STRATA_SOURCE_DIR) / "models" / "tiny-glm-dsa";
    for (const auto& entry : std::filesystem::directory_iterator(shipped)) {
      if (entry.path().filename() != "chat_template.jinja")
        std::filesystem::create_symlink(entry.path(), folder_.path() / entry.path().filename());
    }
    folder_.Write("chat_template.jinja", chat_template);
  }
  std::string path() const { return folder_.path().string(); }

 private:
  TemporaryFolder folder_;
};

// The turns of the shipped template; what it knows of tools and reasoning stands in front.
inline std::string TurnsTemplate(const std::string& head, const std::string& opening = "") {
  return "{{ '<|endoftext|>' }}" + head +
         "{% for m in messages %}{{ '<|' + m.role + '|>\n' + (m.content or '') }}{% endfor %}"
         "{% if add_generation_prompt %}{{ '<|assistant|>\n" +
         opening + "' }}{% endif %}";
}
// Speaks GLM's calls.
inline std::string CallTemplate(const std::string& opening = "") {
  return TurnsTemplate(
      "{% if tools %}{{ '<|system|>\n' }}{% for t in tools %}{{ t.function.name }} "
      "{% endfor %}<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>"
      "{% endif %}",
      opening);
}

}  // namespace strata
