#pragma once

// Pieces of the program's JSON: names, types, sizes, tensor descriptions. Internal to the frontend.

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "espalier/base/json.h"
#include "espalier/graph/graph.h"

namespace espalier {

// 'text' for a message: one line, at most 80 bytes of it.
std::string quote(std::string_view text);

// Control characters replaced, so that the text stays on one line wherever it is printed.
std::string one_line(std::string_view text);

// One frame of a printed stack trace: `File "m.py", line 9, in forward`.
struct TraceFrame {
  std::string_view path;
  std::string_view line;  // digits
};
std::vector<TraceFrame> trace_frames(std::string_view trace);  // outermost first

// Where in the program a message points: the file, the node, the user's source line.
struct ProgramPlace {
  std::string file;
  std::string node;        // empty: not in a node
  std::string input = {};  // outside nodes, the input that is being read
  std::string source;      // of the node; empty: unknown

  [[noreturn]] void fail(const std::string& problem) const;
};

// Members by key with errors that name the place. `object` must outlive the result.
const Json& member(const Json& object, const char* key, const ProgramPlace& place);
const Json* find_member(const Json& object, const char* key);
const Json::array_t& list(const Json& object, const char* key, const ProgramPlace& place);
std::string text(const Json& object, const char* key, const ProgramPlace& place);
std::int64_t integer(const Json& value, const char* what, const ProgramPlace& place);

// The one member of an object such as {"as_int": 3}.
struct Tagged {
  std::string tag;
  const Json* value;
};
Tagged tagged(const Json& object, const char* what, const ProgramPlace& place);

// torch.export's own numbering of types, not c10's.
std::optional<DType> dtype_of(std::int64_t serialized);

// Reads sizes. Which symbol is the batch is known after the inputs were seen.
class SizeReader {
 public:
  std::string batch_symbol;  // empty: all sizes are constant

  // {"as_int": 8} or {"as_expr": {"expr_str": …}}.
  SizeExpr read(const Json& value, const ProgramPlace& place);

 private:
  std::unordered_map<std::string, SizeExpr> seen_;
};

struct TensorMeta {
  DType dtype = DType::kF32;
  std::vector<SizeExpr> sizes;
  std::vector<SizeExpr> strides;
  SizeExpr storage_offset;
  bool requires_grad = false;
};
TensorMeta read_tensor_meta(const Json& json, SizeReader& sizes, const ProgramPlace& place);

}  // namespace espalier
