// From a schema's keywords to shapes and unions; json_schema_check.cpp holds what is decided about
// them afterwards.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "models/json_keywords.h"
#include "models/json_schema.h"

namespace strata {

class JsonSchemaCompiler {
 public:
  JsonSchemaCompiler(const nlohmann::ordered_json& root, std::string path);
  JsonSchema Compile();
  JsonSchema AnyObject();

 private:
  // A union before its literals are gathered in one shape.
  struct Pieces {
    std::vector<uint32_t> shapes;
    std::vector<std::string> literals;
    bool implied_type = false;
    void Add(const Pieces& more);
  };
  struct Waiting {  // a schema whose union has an index and no shapes yet
    const nlohmann::ordered_json* schema;
    std::string path;
    uint32_t index;
  };
  struct Exclusive {  // a oneOf, to be judged when all is compiled
    std::string path;
    std::vector<uint32_t> unions;
  };

  // json_schema_compiler.cpp
  uint32_t UnionOf(const nlohmann::ordered_json& schema, const std::string& path);
  uint32_t AddUnion(const Pieces& pieces, const std::string& path);
  JsonUnion Finish(const Pieces& pieces, const std::string& path);
  uint32_t AddShape(JsonShape shape);
  Pieces Expand(const nlohmann::ordered_json& schema, const std::string& path,
                const JsonKeywords* also);
  Pieces ExpandKeywords(JsonKeywords keywords, const std::string& path);
  Pieces ExpandAlternatives(JsonKeywords keywords, const std::string& keyword);
  Pieces ExpandValues(const JsonKeywords& keywords, const std::string& path);
  Pieces ExpandTypes(const JsonKeywords& keywords, const std::string& path);
  Pieces PieceOf(const nlohmann::ordered_json& value, const std::string& path, int depth);
  JsonObject ObjectOf(const JsonKeywords& keywords, const std::string& path);
  JsonArray ArrayOf(const JsonKeywords& keywords, const std::string& path);
  void ListProperty(JsonObject& object, const std::string& name, uint32_t value, bool required,
                    const std::string& path);
  std::string Spell(const nlohmann::ordered_json& value, const std::string& path);
  void Charge(size_t elements, size_t bytes, const std::string& path);

  // json_schema_check.cpp
  void FindNesting();
  void CheckExclusive();
  bool Excludes(const JsonUnion& written, const JsonUnion& valid, int depth);
  bool Excludes(const JsonShape& written, const JsonShape& valid, int depth);
  bool ExcludesObject(const JsonObject& written, const JsonObject& valid, int depth);
  void CheckAlternatives();

  JsonSchema schema_;
  JsonKeywordReader reader_;
  const nlohmann::ordered_json& root_;
  std::string path_;
  Pieces any_;
  uint32_t any_union_ = 0, no_union_ = 0, any_object_ = 0;
  std::map<const nlohmann::ordered_json*, uint32_t> unions_by_schema_;
  std::map<const nlohmann::ordered_json*, Pieces> pieces_by_schema_;
  std::map<std::vector<std::string>, uint32_t> literal_shapes_;
  std::deque<Waiting> waiting_;
  std::vector<Exclusive> exclusive_;
  size_t elements_ = 0, bytes_ = 0, comparisons_ = 0;
};

}  // namespace strata
