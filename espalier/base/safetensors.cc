#include "espalier/base/safetensors.h"

#include <algorithm>
#include <set>

#include "espalier/base/check.h"
#include "espalier/base/json.h"

namespace espalier {
namespace {

constexpr std::uint64_t kMaxHeader = 100'000'000;
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 60;

// Bytes of a tensor; -1 if they exceed kMaxBytes.
std::int64_t tensor_bytes(std::string_view dtype, const std::vector<std::int64_t>& shape) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  std::int64_t bytes = safetensors_element_size(dtype);
  for (const std::int64_t size : shape) {
    if (size < 0 || size > kMaxBytes / bytes) return -1;
    bytes *= size;
  }
  return bytes;
}

std::string short_name(std::string_view name) {
  std::string text(name.substr(0, 80));
  for (char& c : text) c = static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  return "'" + text + (name.size() > 80 ? "…'" : "'");
}

std::string_view read_header(std::string_view bytes, const std::string& name) {
  std::uint64_t length = 0;
  if (bytes.size() < 8) throw InputError(name + ": is not a safetensors file: it is shorter than 8 bytes");
  for (std::size_t i = 8; i-- > 0;) length = length << 8 | static_cast<unsigned char>(bytes[i]);
  if (length > kMaxHeader || length > bytes.size() - 8) {
    throw InputError(name + ": is not a safetensors file, or it is cut off: its header should have " +
                     std::to_string(length) + " bytes, and " + std::to_string(bytes.size() - 8) +
                     " are there");
  }
  const std::string_view header = bytes.substr(8, length);
  if (!header.starts_with('{'))
    throw InputError(name + ": is not a safetensors file: its header is not a JSON object");
  return header;
}

}  // namespace

std::int64_t safetensors_element_size(std::string_view dtype) {
  static constexpr std::pair<std::string_view, std::int64_t> kSizes[] = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},   {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"U16", 2},
      {"I16", 2},  {"F16", 2}, {"BF16", 2}, {"U32", 4},     {"I32", 4},     {"F32", 4},
      {"U64", 8},  {"I64", 8}, {"F64", 8},  {"C64", 8}};
  for (const auto& [name, size] : kSizes) {
    if (name == dtype) return size;
  }
  return 0;
}

SafetensorsReader::SafetensorsReader(std::string_view bytes, const std::string& name) : file_(name) {
  const std::string_view header = read_header(bytes, name);
  const std::string_view data = bytes.substr(8 + header.size());
  const Json json = parse_json(header, name);
  for (const auto& [key, value] : JsonCursor(json, name).members()) {
    if (key == "__metadata__") {
      for (const auto& [k, v] : value.members()) metadata_.emplace_back(k, v.string());
      continue;
    }
    value.only({"dtype", "shape", "data_offsets"});
    Entry entry{.name = key, .dtype = value.at("dtype").string(), .shape = {}, .data = {}};
    if (safetensors_element_size(entry.dtype) == 0)
      value.at("dtype").fail("is " + short_name(entry.dtype) + ", which the format does not have");
    const JsonCursor shape = value.at("shape");
    for (std::size_t i = 0; i < shape.size(); ++i) entry.shape.push_back(shape.at(i).integer(0, kMaxBytes));
    const JsonCursor offsets = value.at("data_offsets");
    if (offsets.size() != 2)
      offsets.fail("has " + std::to_string(offsets.size()) + " elements; expected begin and end");
    const std::int64_t begin = offsets.at(std::size_t{0}).integer(0, kMaxBytes);
    const std::int64_t end = offsets.at(1).integer(begin, kMaxBytes);
    if (static_cast<std::uint64_t>(end) > data.size()) {
      offsets.fail("ends at " + std::to_string(end) + ", and the file has " + std::to_string(data.size()) +
                   " bytes of data; is it cut off?");
    }
    if (tensor_bytes(entry.dtype, entry.shape) != end - begin) {
      offsets.fail("spans " + std::to_string(end - begin) + " bytes, which its type and shape do not fill");
    }
    entry.data = data.substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
    entry.offset = 8 + header.size() + static_cast<std::uint64_t>(begin);
    entries_.push_back(std::move(entry));
  }
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.offset, a.data.size()) < std::pair(b.offset, b.data.size());
  });
  std::uint64_t expected = 8 + header.size();
  for (const Entry& entry : entries_) {
    if (entry.offset != expected) {
      throw InputError(name + ": tensor " + short_name(entry.name) +
                       (entry.offset < expected ? " overlaps the one before it" : " lies behind a hole"));
    }
    expected += entry.data.size();
  }
  if (expected != bytes.size()) {
    throw InputError(name + ": has " + std::to_string(bytes.size() - expected) +
                     " bytes that belong to no tensor");
  }
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) { return a.name < b.name; });
}

const SafetensorsReader::Entry* SafetensorsReader::find(std::string_view name) const {
  const auto found = std::lower_bound(entries_.begin(), entries_.end(), name,
                                      [](const Entry& entry, std::string_view n) { return entry.name < n; });
  return found != entries_.end() && found->name == name ? &*found : nullptr;
}

const SafetensorsReader::Entry& SafetensorsReader::get(std::string_view name) const {
  if (const Entry* const entry = find(name)) return *entry;
  std::string names;
  for (std::size_t i = 0; i < std::min<std::size_t>(entries_.size(), 5); ++i)
    names += (i > 0 ? ", " : "") + short_name(entries_[i].name);
  throw InputError(file_ + ": has no tensor " + short_name(name) + "; it has " +
                   (names.empty() ? "none" : names) + (entries_.size() > 5 ? ", …" : ""));
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, const std::vector<Entry>& entries,
                                     const SafetensorsMetadata& metadata) {
  Json header = Json::object();
  for (const auto& [key, value] : metadata) header["__metadata__"][key] = value;
  std::set<std::string> names{"__metadata__"};
  for (const Entry& entry : entries) {
    const std::int64_t bytes =
        safetensors_element_size(entry.dtype) == 0 ? -1 : tensor_bytes(entry.dtype, entry.shape);
    if (bytes < 0)
      throw InputError(path + ": tensor " + short_name(entry.name) +
                       " has a type or size that cannot be stored");
    if (!names.insert(entry.name).second)
      throw InputError(path + ": tensor name " + short_name(entry.name) + " stands twice");
    Json row = Json::object();
    row["dtype"] = entry.dtype;
    row["shape"] = entry.shape;
    row["data_offsets"] = {due_, due_ + static_cast<std::uint64_t>(bytes)};
    header.get_ref<Json::object_t&>().emplace_back(entry.name, std::move(row));
    due_ += static_cast<std::uint64_t>(bytes);
  }
  std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.append((8 - text.size() % 8) % 8, ' ');  // data start on a multiple of 8
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> 8 * i & 0xff);
  file_.emplace(path);
  file_->write(length);
  file_->write(text);
}

void SafetensorsWriter::write(std::string_view data) {
  ESP_CHECK(file_ && data.size() <= due_, data.size(), due_);
  file_->write(data);
  due_ -= data.size();
}

void SafetensorsWriter::finish() {
  ESP_CHECK(file_ && due_ == 0, due_);
  file_->finish();
  file_.reset();
}

}  // namespace espalier
