#include "espalier/frontend/onnx_file.h"

#include <algorithm>
#include <bit>

#include "espalier/base/check.h"
#include "espalier/frontend/decode.h"

namespace espalier {
namespace {

enum class WireType : std::uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

// One field of a message: its number, and a number or bytes.
struct WireField {
  std::uint32_t number = 0;
  WireType type = WireType::kVarint;
  std::uint64_t value = 0;
  std::string_view bytes = {};
};

std::uint64_t little_endian(std::string_view raw, std::size_t at, std::size_t size) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < size; ++i)
    value |= static_cast<std::uint64_t>(static_cast<unsigned char>(raw[at + i])) << (8 * i);
  return value;
}

// The fields of one message, in the order of the file. Every length is checked against the bytes there are.
class WireReader {
 public:
  WireReader(std::string_view message, std::string_view file, const std::string& name)
      : message_(message), file_(file), name_(name) {}

  WireReader inside(const WireField& field) const { return {bytes(field), file_, name_}; }

  bool next(WireField& field) {
    if (at_ == message_.size()) return false;
    const std::uint64_t key = varint();
    if (key >> 3 == 0 || key >> 3 > 0x1fffffff) fail("a field has no number");
    field.number = static_cast<std::uint32_t>(key >> 3);
    field.type = static_cast<WireType>(key & 7);
    field.bytes = {};
    switch (field.type) {
      case WireType::kVarint:
        field.value = varint();
        return true;
      case WireType::kFixed64:
        field.value = fixed(8);
        return true;
      case WireType::kFixed32:
        field.value = fixed(4);
        return true;
      case WireType::kBytes: {
        const std::uint64_t length = varint();
        if (length > message_.size() - at_) fail("a field is longer than what holds it");
        field.bytes = message_.substr(at_, static_cast<std::size_t>(length));
        at_ += static_cast<std::size_t>(length);
        return true;
      }
    }
    fail("a field has a wire type that is not used");
  }

  std::string_view bytes(const WireField& field) const {
    if (field.type != WireType::kBytes)
      fail("field " + std::to_string(field.number) + " holds a number, not text");
    return field.bytes;
  }
  std::string text(const WireField& field) const { return one_line(bytes(field)); }
  std::int64_t integer(const WireField& field) const {
    if (field.type != WireType::kVarint)
      fail("field " + std::to_string(field.number) + " holds no whole number");
    return static_cast<std::int64_t>(field.value);
  }
  double real(const WireField& field) const {
    if (field.type == WireType::kFixed32)
      return std::bit_cast<float>(static_cast<std::uint32_t>(field.value));
    if (field.type == WireType::kFixed64) return std::bit_cast<double>(field.value);
    fail("field " + std::to_string(field.number) + " holds no real number");
  }

  // Of an attribute or a constant: nobody means more than ±2^31 but "to the end", and rules may then
  // multiply.
  static std::int64_t bounded(std::int64_t number) {
    constexpr std::int64_t kMost = std::int64_t{1} << 31;
    return std::clamp(number, -kMost, kMost);
  }

  // A repeated number: one of them, or all packed together.
  void add_integers(const WireField& field, std::vector<std::int64_t>& numbers) const {
    if (field.type != WireType::kBytes) {
      numbers.push_back(integer(field));
      return;
    }
    for (WireReader packed = inside(field); packed.at_ < packed.message_.size();)
      numbers.push_back(static_cast<std::int64_t>(packed.varint()));
  }
  void add_reals(const WireField& field, std::size_t size, std::vector<double>& numbers) const {
    if (field.type != WireType::kBytes) {
      numbers.push_back(real(field));
      return;
    }
    for (WireReader packed = inside(field); packed.at_ < packed.message_.size();) {
      const std::uint64_t bits = packed.fixed(size);
      numbers.push_back(size == 4 ? std::bit_cast<float>(static_cast<std::uint32_t>(bits))
                                  : std::bit_cast<double>(bits));
    }
  }

  [[noreturn]] void fail(const std::string& problem) const {
    const auto place = static_cast<std::size_t>(message_.data() - file_.data()) + at_;
    throw InputError(name_ + ": is a damaged ONNX file: " + problem + ", near byte " + std::to_string(place));
  }

 private:
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      if (at_ == message_.size()) fail("it ends within a number");
      const auto byte = static_cast<unsigned char>(message_[at_++]);
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    fail("a number has more than ten bytes");
  }
  std::uint64_t fixed(std::size_t size) {
    if (message_.size() - at_ < size) fail("it ends within a number");
    at_ += size;
    return little_endian(message_, at_ - size, size);
  }

  std::string_view message_, file_;
  const std::string& name_;
  std::size_t at_ = 0;
};

// TensorProto.DataType, as far as constants of these types are read.
enum OnnxElement : std::int64_t {
  kOnnxFloat = 1,
  kOnnxInt32 = 6,
  kOnnxInt64 = 7,
  kOnnxBool = 9,
  kOnnxDouble = 11,
};

// The elements, where they are few and lie in the file.
void read_elements(std::string_view raw, std::vector<std::int64_t> integers, std::vector<double> reals,
                   bool elsewhere, OnnxTensor& tensor) {
  std::int64_t elements = 1;
  for (const std::int64_t dim : tensor.dims) {
    if (dim < 0 || (dim > 0 && elements > kMostOnnxConstants / dim)) return;
    elements *= dim;
  }
  if (elsewhere) return;
  const auto count = static_cast<std::size_t>(elements);
  const auto each = [&](std::size_t size, const auto& add) {
    if (raw.size() != count * size) return false;
    for (std::size_t i = 0; i < count; ++i) add(little_endian(raw, i * size, size));
    return true;
  };
  switch (tensor.element) {
    case kOnnxInt64:
      if (integers.empty())
        each(8, [&](std::uint64_t bits) { integers.push_back(static_cast<std::int64_t>(bits)); });
      break;
    case kOnnxInt32:
      if (integers.empty())
        each(4, [&](std::uint64_t bits) { integers.push_back(static_cast<std::int32_t>(bits)); });
      break;
    case kOnnxBool:
      if (integers.empty()) each(1, [&](std::uint64_t bits) { integers.push_back(bits != 0 ? 1 : 0); });
      break;
    case kOnnxFloat:
      if (reals.empty())
        each(4, [&](std::uint64_t bits) {
          reals.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
        });
      break;
    case kOnnxDouble:
      if (reals.empty()) each(8, [&](std::uint64_t bits) { reals.push_back(std::bit_cast<double>(bits)); });
      break;
    default:
      return;
  }
  const bool whole = tensor.element != kOnnxFloat && tensor.element != kOnnxDouble;
  for (std::int64_t& number : integers) number = WireReader::bounded(number);
  if (whole && integers.size() == count) tensor.integers = std::move(integers);
  if (!whole && reals.size() == count) tensor.reals = std::move(reals);
}

OnnxTensor read_tensor(WireReader reader) {
  OnnxTensor tensor;
  std::string_view raw;
  std::vector<std::int64_t> integers;
  std::vector<double> reals;
  bool elsewhere = false;
  for (WireField field; reader.next(field);) {
    switch (field.number) {
      case 1:
        reader.add_integers(field, tensor.dims);
        break;
      case 2:
        tensor.element = reader.integer(field);
        break;
      case 4:  // float_data
        if (field.bytes.size() <= 4 * kMostOnnxConstants) reader.add_reals(field, 4, reals);
        break;
      case 5:  // int32_data, booleans too
      case 7:  // int64_data
        if (field.bytes.size() <= 10 * kMostOnnxConstants) reader.add_integers(field, integers);
        break;
      case 8:
        tensor.name = reader.text(field);
        break;
      case 9:
        raw = reader.bytes(field);
        break;
      case 10:  // double_data
        if (field.bytes.size() <= 8 * kMostOnnxConstants) reader.add_reals(field, 8, reals);
        break;
      case 14:  // data_location
        elsewhere = reader.integer(field) == 1;
        break;
      default:
        break;
    }
  }
  for (const std::int64_t dim : tensor.dims)
    if (dim < 0) reader.fail("tensor " + quote(tensor.name) + " has a negative size");
  read_elements(raw, std::move(integers), std::move(reals), elsewhere, tensor);
  return tensor;
}

// Graphs within graphs: no exporter nests more.
constexpr int kDeepest = 16;
OnnxGraph read_onnx_graph(WireReader reader, int depth);

OnnxAttribute read_attribute(WireReader reader, int depth) {
  OnnxAttribute attribute;
  for (WireField field; reader.next(field);) {
    switch (field.number) {
      case 1:
        attribute.name = reader.text(field);
        break;
      case 2:
        attribute.real = reader.real(field);
        break;
      case 3:
        attribute.integer = WireReader::bounded(reader.integer(field));
        break;
      case 4:
        attribute.text = reader.text(field);
        break;
      case 5:
        attribute.tensor = read_tensor(reader.inside(field));
        break;
      case 6:
        attribute.graph = std::make_shared<const OnnxGraph>(read_onnx_graph(reader.inside(field), depth + 1));
        break;
      case 7:
        reader.add_reals(field, 4, attribute.reals);
        break;
      case 8:
        reader.add_integers(field, attribute.integers);
        for (std::int64_t& number : attribute.integers) number = WireReader::bounded(number);
        break;
      default:
        break;
    }
  }
  return attribute;
}

std::pair<std::string, std::string> read_note(WireReader reader) {
  std::pair<std::string, std::string> note;
  for (WireField field; reader.next(field);) {
    if (field.number == 1) note.first = reader.text(field);
    if (field.number == 2) note.second = reader.text(field);
  }
  return note;
}

// PyTorch's "['', 'encoder', 'encoder.layers.0', 'linear']": the last but one, since the last is the
// operator.
std::string module_of_scopes(std::string_view scopes) {
  std::vector<std::string_view> levels;
  for (std::size_t at = 0; (at = scopes.find('\'', at)) != std::string_view::npos;) {
    const std::size_t end = scopes.find('\'', at + 1);
    if (end == std::string_view::npos) break;
    levels.push_back(scopes.substr(at + 1, end - at - 1));
    at = end + 1;
  }
  if (levels.size() < 2) return {};
  const std::string_view path = levels[levels.size() - 2];
  return std::string(path.substr(0, path.find('@')));
}

// "/encoder/layers.0/linear/MatMul" and "model/conv1/Conv2D": all levels but the last.
std::string module_of_name(std::string_view name) {
  const auto last = name.rfind('/');
  if (last == std::string_view::npos) return {};
  name = name.substr(0, last);
  while (!name.empty() && name.front() == '/') name.remove_prefix(1);
  std::string path(name);
  std::replace(path.begin(), path.end(), '/', '.');
  return path;
}

// `File "m.py", line 9, in forward`: the innermost frame that is not PyTorch's own, else the outermost. Of an
// installed package the path begins with its name.
std::string source_of_trace(std::string_view trace) {
  std::string source;
  for (const TraceFrame& frame : trace_frames(trace)) {
    std::string_view path = frame.path;
    for (const std::string_view folder : {"site-packages/", "dist-packages/"}) {
      const auto package = path.rfind(folder);
      if (package != std::string_view::npos) path.remove_prefix(package + folder.size());
    }
    if (source.empty() || !path.starts_with("torch/"))
      source = std::string(path) + ":" + std::string(frame.line);
  }
  return source;
}

OnnxNode read_node(WireReader reader, int depth) {
  OnnxNode node;
  for (WireField field; reader.next(field);) {
    switch (field.number) {
      case 1:
        node.inputs.push_back(reader.text(field));
        break;
      case 2:
        node.outputs.push_back(reader.text(field));
        break;
      case 3:
        node.name = reader.text(field);
        break;
      case 4:
        node.type = reader.text(field);
        break;
      case 5:
        node.attributes.push_back(read_attribute(reader.inside(field), depth));
        break;
      case 7:
        node.domain = reader.text(field);
        break;
      case 9: {
        const auto [key, value] = read_note(reader.inside(field));
        if (key == "pkg.torch.onnx.name_scopes") node.module_path = module_of_scopes(value);
        if (key == "pkg.torch.onnx.stack_trace") node.source = source_of_trace(value);
        break;
      }
      default:
        break;
    }
  }
  if (node.domain == "ai.onnx") node.domain.clear();
  if (node.module_path.empty()) node.module_path = module_of_name(node.name);
  return node;
}

OnnxDim read_dim(WireReader reader) {
  OnnxDim dim;
  for (WireField field; reader.next(field);) {
    if (field.number == 1) dim.value = reader.integer(field);
    if (field.number == 2) dim.symbol = reader.text(field);
  }
  if (dim.value && *dim.value < 0) dim.value.reset();  // some writers mean "open" by -1
  return dim;
}

OnnxType read_tensor_type(WireReader reader) {
  OnnxType type{.is_tensor = true};
  for (WireField field; reader.next(field);) {
    if (field.number == 1) type.element = reader.integer(field);
    if (field.number != 2) continue;
    type.dims.emplace();
    WireReader shape = reader.inside(field);
    for (WireField dim; shape.next(dim);)
      if (dim.number == 1) type.dims->push_back(read_dim(shape.inside(dim)));
  }
  return type;
}

// A ValueInfoProto.
std::pair<std::string, OnnxType> read_value(WireReader reader) {
  std::pair<std::string, OnnxType> value;
  for (WireField field; reader.next(field);) {
    if (field.number == 1) value.first = reader.text(field);
    if (field.number != 2) continue;
    WireReader type = reader.inside(field);
    for (WireField kind; type.next(kind);)
      if (kind.number == 1) value.second = read_tensor_type(type.inside(kind));
  }
  return value;
}

OnnxGraph read_onnx_graph(WireReader reader, int depth) {
  if (depth > kDeepest) reader.fail("graphs are nested more than " + std::to_string(kDeepest) + " deep");
  OnnxGraph graph;
  for (WireField field; reader.next(field);) {
    switch (field.number) {
      case 1:
        graph.nodes.push_back(read_node(reader.inside(field), depth));
        break;
      case 5:
        graph.initializers.push_back(read_tensor(reader.inside(field)));
        break;
      case 11:
        graph.inputs.push_back(read_value(reader.inside(field)));
        graph.types.insert(graph.inputs.back());
        break;
      case 12: {
        auto value = read_value(reader.inside(field));
        graph.outputs.push_back(value.first);
        graph.types.insert(std::move(value));
        break;
      }
      case 13:
        graph.types.insert(read_value(reader.inside(field)));
        break;
      case 15:
        reader.fail("it has sparse weights, which are not read");
      default:
        break;
    }
  }
  return graph;
}

}  // namespace

const OnnxAttribute* OnnxNode::find(std::string_view attribute) const {
  const auto found = std::find_if(attributes.begin(), attributes.end(),
                                  [&](const OnnxAttribute& each) { return each.name == attribute; });
  return found == attributes.end() ? nullptr : &*found;
}

std::int64_t OnnxNode::integer(std::string_view attribute, std::int64_t otherwise) const {
  const OnnxAttribute* const found = find(attribute);
  return found != nullptr && found->integer ? *found->integer : otherwise;
}

std::string OnnxNode::text(std::string_view attribute) const {
  const OnnxAttribute* const found = find(attribute);
  return found != nullptr ? found->text : std::string();
}

std::optional<std::vector<std::int64_t>> OnnxNode::integers(std::string_view attribute) const {
  const OnnxAttribute* const found = find(attribute);
  if (found == nullptr) return std::nullopt;
  return found->integers;
}

bool is_onnx(std::string_view bytes) {
  // Field 1 (ir_version), then another field of ModelProto: producer, domain, version, graph, opsets.
  constexpr std::string_view kFields = "\x12\x1a\x22\x28\x32\x3a\x42";
  return bytes.size() > 8 && bytes[0] == '\x08' && bytes[1] >= 1 && bytes[1] <= 30 &&
         kFields.find(bytes[2]) != std::string_view::npos;
}

OnnxFile read_onnx_file(std::string_view bytes, const std::string& name) {
  OnnxFile file;
  bool has_graph = false;
  WireReader reader(bytes, bytes, name);
  for (WireField field; reader.next(field);) {
    switch (field.number) {
      case 7:
        if (has_graph) reader.fail("it has two graphs");
        has_graph = true;
        static_cast<OnnxGraph&>(file) = read_onnx_graph(reader.inside(field), 0);
        break;
      case 8: {
        std::string domain;
        std::int64_t version = 0;
        WireReader opset = reader.inside(field);
        for (WireField part; opset.next(part);) {
          if (part.number == 1) domain = opset.text(part);
          if (part.number == 2) version = opset.integer(part);
        }
        if (domain.empty() || domain == "ai.onnx") file.opset = version;
        break;
      }
      case 25:
        file.has_functions = true;
        break;
      default:
        break;
    }
  }
  if (!has_graph) reader.fail("it has no graph");
  return file;
}

std::optional<DType> onnx_dtype(std::int64_t element) {
  switch (element) {
    case 1:
      return DType::kF32;
    case 2:
    case 21:  // unsigned, four bits
    case 22:  // signed, four bits
    case 23:  // floating-point, four bits
    case 25:  // unsigned, two bits
    case 26:  // signed, two bits
      return DType::kU8;
    case 3:
      return DType::kI8;
    case 4:
      return DType::kU16;
    case 5:
      return DType::kI16;
    case 6:
      return DType::kI32;
    case 7:
      return DType::kI64;
    case 9:
      return DType::kBool;
    case 10:
      return DType::kF16;
    case 11:
      return DType::kF64;
    case 12:
      return DType::kU32;
    case 13:
      return DType::kU64;
    case 14:
      return DType::kC64;
    case 15:
      return DType::kC128;
    case 16:
      return DType::kBF16;
    case 17:
    case 18:
    case 19:
    case 20:
    case 24:
      return DType::kF8;
    default:
      return std::nullopt;
  }
}

}  // namespace espalier
