#pragma once

// The JSON edge: reading untrusted text into values with errors that name the place, writing the same bytes
// every time. Heavy to compile; include it in .cc files that read or write a format, not in headers
// (<nlohmann/json_fwd.hpp> is enough there).

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "espalier/base/check.h"
#include "espalier/base/units.h"

namespace espalier {

// Keys keep the order in which they were written, so that files read as their author meant.
using Json = nlohmann::ordered_json;

// Throws InputError "<where>: …" with line and column. Depth is bounded (200), duplicate keys are refused.
Json parse_json(std::string_view text, std::string_view where);

// Two-space indent, short arrays and objects (up to 100 columns) on one line, newline at the end.
std::string print_json(const Json& json);

// A place in a JSON document, for error messages: "plan.json: stages[2].micro_batch". A step further costs
// nothing: what the place is called is looked up when somebody asks. The document must outlive it.
// Every getter throws InputError naming the place, what is there and what would be right.
class JsonCursor {
 public:
  // `where` is what the document is called: "plan.json", or "plan.json: costs" for a part of another.
  JsonCursor(const Json& document, std::string where)
      : json_(&document),
        document_(std::make_shared<const Document>(Document{&document, std::move(where)})) {}

  const Json& json() const { return *json_; }
  std::string where() const;                                 // O(document)
  [[noreturn]] void fail(const std::string& problem) const;  // "<where>: <problem>"

  bool has(std::string_view key) const;                             // also refuses a non-object
  JsonCursor at(std::string_view key) const;                        // a required member
  JsonCursor at(std::size_t index) const;                           // an element
  std::size_t size() const;                                         // of an array; refuses anything else
  std::vector<std::pair<std::string, JsonCursor>> members() const;  // of an object, in file order

  const std::string& string() const;         // the document's own
  std::vector<std::string> strings() const;  // an array of them
  bool boolean() const;                      // true, false; nothing else
  std::int64_t integer(std::int64_t min, std::int64_t max) const;
  double number(double min, double max) const;  // finite
  Duration duration() const { return Duration(integer(0, kMax)); }
  Bytes bytes() const { return Bytes(integer(0, kMax)); }

  // What `read` makes of the string here. An InputError of its own gets this place in front.
  template <class Read>
  auto parsed(const Read& read) const {
    const std::string text = string();
    try {
      return read(text);
    } catch (const InputError& error) {
      fail(error.what());
    }
  }

  // Refuses members that are not listed, naming the nearest known key.
  void only(std::initializer_list<std::string_view> keys) const;

  // The document's "format" must be `format`; another version or value says which is supported.
  void expect_format(std::string_view format) const;

 private:
  static constexpr std::int64_t kMax = std::int64_t{1} << 62;
  struct Document {
    const Json* root;
    std::string name;
  };
  JsonCursor(const Json& json, std::shared_ptr<const Document> document)
      : json_(&json), document_(std::move(document)) {}

  const Json* member(std::string_view key) const;  // null where it is missing; refuses a non-object

  const Json* json_;
  std::shared_ptr<const Document> document_;
};

}  // namespace espalier
