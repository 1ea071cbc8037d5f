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
constexpr std::ptrdiff_t kFew = 24;  // keys of an object that are compared one by one

// Builds the document from parser events, so that depth and duplicate keys are refused while reading. What
// open lists and objects have so far waits in one row: once it is known how many they are, each container
// gets just the room it needs.
class Builder : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(std::string_view where) : where_(where) {}
  Json take() { return std::move(waiting_.front().value); }

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
  bool start_object(std::size_t) override { return open(Kind::kObject); }
  bool start_array(std::size_t) override { return open(Kind::kArray); }
  bool key(string_t& value) override {
    if (stands(value)) {
      throw InputError(std::string(where_) + ": key '" + value.substr(0, 80) +
                       "' stands twice in one object");
    }
    waiting_.push_back({value, {}});
    return true;
  }
  bool end_object() override {
    Json::object_t members;
    members.reserve(waiting_.size() - open_.back().first);
    for (std::size_t i = open_.back().first; i < waiting_.size(); ++i) {
      // Not operator[]: it would search, and the keys are known to differ.
      members.Container::emplace_back(std::move(waiting_[i].key), std::move(waiting_[i].value));
    }
    return close(std::move(members));
  }
  bool end_array() override {
    Json::array_t elements;
    elements.reserve(waiting_.size() - open_.back().first);
    for (std::size_t i = open_.back().first; i < waiting_.size(); ++i) {
      elements.push_back(std::move(waiting_[i].value));
    }
    return close(std::move(elements));
  }
  bool parse_error(std::size_t, const std::string&, const Json::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 3, column 7: …"
    std::string text = error.what();
    if (const auto end = text.find("] "); end != std::string::npos) text = text.substr(end + 2);
    for (char& c : text) c = static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    if (text.size() > 200) text = text.substr(0, 200) + " …";
    throw InputError(std::string(where_) + ": not JSON: " + text);
  }

 private:
  enum class Kind : std::uint8_t { kArray, kObject };
  struct Member {
    std::string key;  // empty in a list
    Json value;
  };
  struct Open {
    Kind kind;
    std::size_t first;           // of its members in the row
    std::set<std::string> keys;  // of an object, once they are many
  };

  template <class T>
  bool put(T&& value) {
    if (!open_.empty() && open_.back().kind == Kind::kObject) {
      waiting_.back().value = std::forward<T>(value);
    } else {
      waiting_.push_back({{}, std::forward<T>(value)});
    }
    return true;
  }
  bool open(Kind kind) {
    if (open_.size() >= kMaxDepth) {
      throw InputError(std::string(where_) + ": nested deeper than " + std::to_string(kMaxDepth) + " levels");
    }
    put(nullptr);  // its place
    open_.push_back({kind, waiting_.size(), {}});
    return true;
  }
  template <class T>
  bool close(T&& container) {
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(open_.back().first), waiting_.end());
    waiting_.back().value = std::forward<T>(container);
    open_.pop_back();
    return true;
  }
  // Whether the open object has the key.
  bool stands(const std::string& key) {
    Open& object = open_.back();
    const auto first = waiting_.begin() + static_cast<std::ptrdiff_t>(object.first);
    if (waiting_.end() - first < kFew) {
      return std::any_of(first, waiting_.end(), [&](const Member& one) { return one.key == key; });
    }
    if (object.keys.empty()) {
      for (auto one = first; one != waiting_.end(); ++one) object.keys.insert(one->key);
    }
    return !object.keys.insert(key).second;
  }

  std::string_view where_;
  std::vector<Member>
      waiting_;  // members of the open containers, outermost first; at last the document alone
  std::vector<Open> open_;
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
  auto next = keys.begin();  // most files have them in the order of the list
  for (const auto& [key, value] : json_->get_ref<const Json::object_t&>()) {
    auto found = std::find(next, keys.end(), key);
    if (found == keys.end()) found = std::find(keys.begin(), next, key);
    if (found != keys.end() && *found == key) {
      next = found + 1;
      continue;
    }
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
