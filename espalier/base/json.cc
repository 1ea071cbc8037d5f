#include "espalier/base/json.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "espalier/base/check.h"
#include "espalier/base/spelling.h"

namespace espalier {
namespace {

constexpr int kMaxDepth = 200;
constexpr std::size_t kColumns = 100;
constexpr std::size_t kUsualMembers = 6;
constexpr std::size_t kFew = 24;  // keys of an object that are compared one by one

// Builds the document from parser events, so that depth and duplicate keys are refused while reading.
class Builder : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(std::string_view where) : where_(where) {}
  Json take() { return std::move(root_); }

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(value); }
  bool number_unsigned(number_unsigned_t value) override { return put(value); }
  bool number_float(number_float_t value, const string_t& text) override {
    if (!std::isfinite(value))
      throw InputError(std::string(where_) + ": number " + text.substr(0, 40) + " is out of range");
    return put(value);
  }
  // Copied, not moved: the parser keeps the room that it has for the next one.
  bool string(string_t& value) override { return put(std::as_const(value)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override {
    open(Json::object());
    stack_.back()->get_ref<Json::object_t&>().reserve(kUsualMembers);
    return true;
  }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool key(string_t& value) override {
    if (stands(value)) {
      throw InputError(std::string(where_) + ": key '" + value.substr(0, 80) +
                       "' stands twice in one object");
    }
    key_ = value;
    return true;
  }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t, const std::string&, const Json::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 3, column 7: …"
    std::string text = error.what();
    if (const auto end = text.find("] "); end != std::string::npos) text = text.substr(end + 2);
    for (char& c : text) c = static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    if (text.size() > 200) text = text.substr(0, 200) + " …";
    throw InputError(std::string(where_) + ": not JSON: " + text);
  }

 private:
  Json* add(Json&& value) {
    if (stack_.empty()) return root_ = std::move(value), &root_;
    Json& parent = *stack_.back();
    if (parent.is_array()) return parent.push_back(std::move(value)), &parent.back();
    // Not operator[]: it would search, and the key is known to be new.
    auto& object = parent.get_ref<Json::object_t&>();
    object.Container::emplace_back(key_, std::move(value));
    return &object.Container::back().second;
  }
  template <class T>
  bool put(T&& value) {
    add(Json(std::forward<T>(value)));
    return true;
  }
  bool open(Json&& value) {
    if (stack_.size() >= kMaxDepth) {
      throw InputError(std::string(where_) + ": nested deeper than " + std::to_string(kMaxDepth) + " levels");
    }
    stack_.push_back(add(std::move(value)));
    keys_.emplace_back();
    return true;
  }
  bool close() {
    stack_.pop_back();
    keys_.pop_back();
    return true;
  }
  // Whether the open object has the key. A set of them is kept once they are many.
  bool stands(const std::string& key) {
    const auto& members = stack_.back()->get_ref<const Json::object_t&>();
    std::set<std::string>& many = keys_.back();
    if (members.size() < kFew) {
      return std::any_of(members.begin(), members.end(), [&](const auto& one) { return one.first == key; });
    }
    if (many.empty()) {
      for (const auto& [name, value] : members) many.insert(name);
    }
    return !many.insert(key).second;
  }

  std::string_view where_;
  Json root_;
  std::vector<Json*> stack_;
  std::vector<std::set<std::string>> keys_;  // of the open objects that have many
  std::string key_;
};

void print(const Json& json, std::size_t indent, std::string& out) {
  std::string flat = json.dump();
  const bool container = (json.is_array() || json.is_object()) && !json.empty();
  if (!container || flat.size() + indent <= kColumns) {
    out += flat;
    return;
  }
  const char* const brackets = json.is_array() ? "[]" : "{}";
  out += brackets[0];
  const char* separator = "\n";
  for (auto it = json.begin(); it != json.end(); ++it) {
    out += separator;
    out.append(indent + 2, ' ');
    if (json.is_object()) out += Json(it.key()).dump() + ": ";
    print(it.value(), indent + 2, out);
    separator = ",\n";
  }
  out += '\n';
  out.append(indent, ' ');
  out += brackets[1];
}

// Appends the way from `from` to `place` to `path`: ": stages[2].name", where `name` shows no place yet.
bool find_place(const Json& from, const Json* place, std::string& path, bool document) {
  if (&from == place) return true;
  const std::size_t length = path.size();
  if (from.is_object()) {
    for (const auto& [key, value] : from.get_ref<const Json::object_t&>()) {
      path.append(document ? ": " : ".").append(key);
      if (find_place(value, place, path, false)) return true;
      path.resize(length);
    }
  } else if (from.is_array()) {
    for (std::size_t i = 0; i < from.size(); ++i) {
      path.append("[").append(std::to_string(i)).append("]");
      if (find_place(from[i], place, path, document)) return true;
      path.resize(length);
    }
  }
  return false;
}

std::string shown(const Json& json) {
  std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() > 60 ? text.substr(0, 60) + "…" : text;
}

}  // namespace

Json parse_json(std::string_view text, std::string_view where) {
  Builder builder(where);
  if (!Json::sax_parse(text, &builder)) throw InputError(std::string(where) + ": not JSON");
  return builder.take();
}

std::string print_json(const Json& json) {
  std::string out;
  print(json, 0, out);
  out += '\n';
  return out;
}

std::string JsonCursor::where() const {
  std::string path = document_->name;
  find_place(*document_->root, json_, path, path.find(": ") == std::string::npos);
  return path;
}

void JsonCursor::fail(const std::string& problem) const {
  throw InputError(where() + ": " + problem);
}

bool JsonCursor::has(std::string_view key) const {
  return member(key) != nullptr;
}

const Json* JsonCursor::member(std::string_view key) const {
  if (!json_->is_object()) fail("is " + shown(*json_) + "; expected an object");
  for (const auto& [name, value] : json_->get_ref<const Json::object_t&>()) {
    if (name == key) return &value;
  }
  return nullptr;
}

JsonCursor JsonCursor::at(std::string_view key) const {
  const Json* value = member(key);
  if (value == nullptr) fail("'" + std::string(key) + "' is missing");
  return {*value, document_};
}

JsonCursor JsonCursor::at(std::size_t index) const {
  if (index >= size()) fail("has no element " + std::to_string(index));
  return {(*json_)[index], document_};
}

std::size_t JsonCursor::size() const {
  if (!json_->is_array()) fail("is " + shown(*json_) + "; expected a list");
  return json_->size();
}

std::vector<std::pair<std::string, JsonCursor>> JsonCursor::members() const {
  if (!json_->is_object()) fail("is " + shown(*json_) + "; expected an object");
  std::vector<std::pair<std::string, JsonCursor>> result;
  for (const auto& [key, value] : json_->get_ref<const Json::object_t&>()) {
    result.emplace_back(key, JsonCursor(value, document_));
  }
  return result;
}

const std::string& JsonCursor::string() const {
  if (!json_->is_string()) fail("is " + shown(*json_) + "; expected a string");
  return json_->get_ref<const std::string&>();
}

std::vector<std::string> JsonCursor::strings() const {
  std::vector<std::string> values;
  for (std::size_t i = 0; i < size(); ++i) values.push_back(at(i).string());
  return values;
}

bool JsonCursor::boolean() const {
  if (!json_->is_boolean()) fail("is " + shown(*json_) + "; expected true or false");
  return json_->get<bool>();
}

std::int64_t JsonCursor::integer(std::int64_t min, std::int64_t max) const {
  const bool whole = json_->is_number_integer();
  const bool beyond =
      json_->is_number_unsigned() && json_->get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX);
  const std::int64_t value = whole && !beyond ? json_->get<std::int64_t>() : 0;
  if (!whole || beyond || value < min || value > max) {
    fail("is " + shown(*json_) + "; expected a whole number from " + std::to_string(min) + " to " +
         std::to_string(max));
  }
  return value;
}

double JsonCursor::number(double min, double max) const {
  if (!json_->is_number()) fail("is " + shown(*json_) + "; expected a number");
  const double value = json_->get<double>();
  if (!(value >= min && value <= max)) {
    fail("is " + shown(*json_) + "; expected a number from " + shown(min) + " to " + shown(max));
  }
  return value;
}

void JsonCursor::only(std::initializer_list<std::string_view> keys) const {
  if (!json_->is_object()) fail("is " + shown(*json_) + "; expected an object");
  for (const auto& [key, value] : json_->get_ref<const Json::object_t&>()) {
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
    const auto nearest = nearest_word(key, {keys.begin(), keys.size()});
    fail("'" + key.substr(0, 80) + "' is not known here" +
         (nearest ? "; did you mean '" + std::string(*nearest) + "'?" : std::string()));
  }
}

void JsonCursor::expect_format(std::string_view format) const {
  const JsonCursor found = at("format");
  if (found.string() != format)
    found.fail("is '" + found.string() + "'; this program reads '" + std::string(format) + "'");
}

}  // namespace espalier
