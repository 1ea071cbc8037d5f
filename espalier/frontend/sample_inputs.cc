#include "espalier/frontend/sample_inputs.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <utility>
#include <variant>

#include "espalier/frontend/zip.h"

namespace espalier {
namespace {

// A pickle is a program for a stack machine. Of its values we build numbers, strings, lists (tuples too),
// dicts and names of globals; calling a global (REDUCE) yields a tensor if it is the one that rebuilds
// tensors, and otherwise nothing.
struct Value;
using Index = std::size_t;  // into Machine::values_, so that sharing and cycles need no ownership

struct Name {
  std::string text;
};
struct List {
  std::vector<Index> items;  // a dict: key, value, key, value, …
  bool dict = false;
};
struct TensorView {
  std::string storage_type, key;
  std::vector<std::int64_t> sizes;
  std::int64_t offset = 0;
};
struct Mark {};
struct Value {
  std::variant<std::monostate, Mark, std::int64_t, std::string, Name, List, TensorView> data;
};

constexpr std::size_t kMaxValues = 100'000;
constexpr std::size_t kMaxElements = 10'000'000;
constexpr int kMaxDepth = 20;

class Machine {
 public:
  explicit Machine(std::string_view code) : code_(code) {}

  // The value at STOP, or nothing if an opcode or operand is not as expected.
  std::optional<Index> run() {
    while (ok_ && at_ < code_.size() && values_.size() < kMaxValues) {
      const auto op = static_cast<unsigned char>(code_[at_++]);
      if (op == '.') return stack_.empty() ? std::nullopt : std::optional(stack_.back());
      step(op);
    }
    return std::nullopt;
  }

  // Tensors and other leaves below a value, as torch flattens them. Lists may share lists, so that a few
  // bytes have leaves, or empty lists, without number: nothing if there are more than kMaxValues of all on
  // the way.
  std::optional<std::vector<Index>> leaves(Index root) const {
    std::vector<Index> found;
    std::vector<std::pair<Index, int>> open{{root, 0}};  // with their depth, the next one last
    for (std::size_t seen = 0; !open.empty(); ++seen) {
      const auto [index, depth] = open.back();
      open.pop_back();
      const List* const list = std::get_if<List>(&values_[index].data);
      if (list == nullptr) {
        found.push_back(index);
        continue;
      }
      const std::size_t count = list->items.size(), step = list->dict ? 2 : 1;
      if (depth >= kMaxDepth || seen + open.size() + count > kMaxValues) return std::nullopt;
      for (std::size_t i = count - count % step; i >= step; i -= step)
        open.emplace_back(list->items[i - 1], depth + 1);
    }
    return found;
  }

  template <class T>
  const T* as(Index index) const {
    return std::get_if<T>(&values_[index].data);
  }

 private:
  std::string_view take(std::size_t n) {
    if (n > code_.size() - at_) return ok_ = false, std::string_view();
    at_ += n;
    return code_.substr(at_ - n, n);
  }
  std::uint64_t number(std::size_t width) {
    std::uint64_t value = 0;
    const std::string_view bytes = take(width);
    for (std::size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
    return value;
  }
  std::string_view line() {
    const auto end = code_.find('\n', at_);
    if (end == std::string_view::npos) return ok_ = false, std::string_view();
    const std::string_view text = code_.substr(at_, end - at_);
    at_ = end + 1;
    return text;
  }
  void push(Value value) {
    stack_.push_back(values_.size());
    values_.push_back(std::move(value));
  }
  Index pop() {
    if (stack_.empty()) {
      ok_ = false;
      push({});
    }
    const Index top = stack_.back();
    stack_.pop_back();
    return top;
  }
  // Everything above the last mark, which goes too.
  std::vector<Index> pop_to_mark() {
    std::vector<Index> items;
    while (ok_) {
      const Index top = pop();
      if (as<Mark>(top) != nullptr) break;
      items.push_back(top);
    }
    std::reverse(items.begin(), items.end());
    return items;
  }
  void push_tuple(std::size_t n) {
    List list;
    for (std::size_t i = 0; i < n; ++i) list.items.push_back(pop());
    std::reverse(list.items.begin(), list.items.end());
    push({std::move(list)});
  }
  void append(std::vector<Index> items) {
    if (stack_.empty()) return void(ok_ = false);
    List* const list = std::get_if<List>(&values_[stack_.back()].data);
    if (list == nullptr) return;  // state of an object we do not build
    list->items.insert(list->items.end(), items.begin(), items.end());
    if (list->items.size() > kMaxValues) ok_ = false;
  }

  void step(unsigned char op) {
    switch (op) {
      case 0x80:
        take(1);
        break;  // PROTO
      case 0x95:
        take(8);
        break;  // FRAME
      case '(':
        push({Mark()});
        break;  // MARK
      case ')':
      case ']':
        push({List()});
        break;  // EMPTY_TUPLE, EMPTY_LIST
      case '}':
        push({List{.items = {}, .dict = true}});
        break;  // EMPTY_DICT
      case 'N':
        push({});
        break;  // NONE
      case 0x88:
        push({std::int64_t{1}});
        break;  // NEWTRUE
      case 0x89:
        push({std::int64_t{0}});
        break;  // NEWFALSE
      case 'J':
        push({std::int64_t{static_cast<std::int32_t>(number(4))}});
        break;
      case 'K':
        push({static_cast<std::int64_t>(number(1))});
        break;
      case 'M':
        push({static_cast<std::int64_t>(number(2))});
        break;
      case 0x8a:
        push_long();
        break;  // LONG1
      case 'G':
        take(8);
        push({});
        break;  // BINFLOAT
      case 'X':
        push({std::string(take(number(4)))});
        break;  // BINUNICODE
      case 0x8c:
        push({std::string(take(number(1)))});
        break;  // SHORT_BINUNICODE
      case 'q':
        memo_[number(1)] = top();
        break;  // BINPUT
      case 'r':
        memo_[number(4)] = top();
        break;  // LONG_BINPUT
      case 0x94:
        memo_[memo_.size()] = top();
        break;  // MEMOIZE
      case 'h':
        recall(number(1));
        break;  // BINGET
      case 'j':
        recall(number(4));
        break;  // LONG_BINGET
      case 'c':
        push_global();
        break;  // GLOBAL
      case 't':
      case 'l':
        push({List{.items = pop_to_mark()}});
        break;  // TUPLE, LIST
      case 0x85:
      case 0x86:
      case 0x87:
        push_tuple(op - 0x84u);
        break;  // TUPLE1, 2, 3
      case 'Q':
        break;  // BINPERSID: its tuple stays
      case 'R':
        reduce();
        break;  // REDUCE
      case 'b':
        pop();
        break;  // BUILD
      case '0':
        pop();
        break;  // POP
      case 'a':
        append({pop()});
        break;  // APPEND
      case 'e':
      case 'u':
        append(pop_to_mark());
        break;  // APPENDS, SETITEMS
      case 's': {
        const Index value = pop();
        append({pop(), value});
        break;
      }  // SETITEM
      default:
        ok_ = false;
    }
  }

  Index top() {
    if (stack_.empty()) ok_ = false, push({});
    return stack_.back();
  }
  void recall(std::uint64_t key) {
    const auto found = memo_.find(key);
    if (found == memo_.end()) return void(ok_ = false);
    stack_.push_back(found->second);
    if (stack_.size() > kMaxValues) ok_ = false;
  }
  void push_long() {
    const std::size_t width = number(1);
    if (width > 8) return void(ok_ = false);
    const std::uint64_t value = number(width);
    const bool negative = width > 0 && width < 8 && (value >> (8 * width - 1) & 1) != 0;
    push({static_cast<std::int64_t>(negative ? value - (std::uint64_t{1} << 8 * width) : value)});
  }
  void push_global() {
    std::string name(line());
    push({Name{name + "." + std::string(line())}});
  }

  // torch._utils._rebuild_tensor_v2(storage, offset, sizes, strides, …) with storage = ('storage', type, key,
  // place, elements).
  void reduce() {
    const Index arguments = pop();
    const Index callee = pop();
    const Name* const name = as<Name>(callee);
    const List* const list = as<List>(arguments);
    if (name == nullptr || list == nullptr || name->text != "torch._utils._rebuild_tensor_v2" ||
        list->items.size() < 4) {
      return push({});
    }
    const List* const storage = as<List>(list->items[0]);
    const std::int64_t* const offset = as<std::int64_t>(list->items[1]);
    const List* const sizes = as<List>(list->items[2]);
    if (storage == nullptr || offset == nullptr || sizes == nullptr || storage->items.size() < 3)
      return push({});
    const Name* const type = as<Name>(storage->items[1]);
    const std::string* const key = as<std::string>(storage->items[2]);
    if (type == nullptr || key == nullptr) return push({});
    TensorView tensor{.storage_type = type->text, .key = *key, .sizes = {}, .offset = *offset};
    for (const Index size : sizes->items) {
      const std::int64_t* const value = as<std::int64_t>(size);
      if (value == nullptr) return push({});
      tensor.sizes.push_back(*value);
    }
    push({std::move(tensor)});
  }

  std::string_view code_;
  std::size_t at_ = 0;
  bool ok_ = true;
  std::vector<Value> values_;
  std::vector<Index> stack_;
  std::unordered_map<std::uint64_t, Index> memo_;
};

// Whether so many elements are there, and `visit` says true of each.
template <class T, class Visit>
bool each_element(std::string_view bytes, std::size_t first, std::size_t count, Visit visit) {
  if (count == 0 || first > bytes.size() / sizeof(T) || count > bytes.size() / sizeof(T) - first)
    return false;
  for (std::size_t i = first; i < first + count; ++i) {
    T element;
    std::memcpy(&element, bytes.data() + i * sizeof(T), sizeof(T));
    if (!visit(element)) return false;
  }
  return true;
}

template <class T>
std::optional<ValueRange> range_of(std::string_view bytes, std::size_t first, std::size_t count) {
  std::optional<ValueRange> range;
  const bool read = each_element<T>(bytes, first, count, [&](T element) {
    const auto value = static_cast<std::int64_t>(element);
    if (!range) range = ValueRange{value, value};
    range->min = std::min(range->min, value), range->max = std::max(range->max, value);
    return true;
  });
  return read ? range : std::nullopt;
}

// Of floating-point numbers that all lie between 0 and 1.
template <class T>
std::optional<ValueRange> range_of_shares(std::string_view bytes, std::size_t first, std::size_t count) {
  T least = 1, most = 0;
  const bool shares = each_element<T>(bytes, first, count, [&](T element) {
    least = std::min(least, element), most = std::max(most, element);
    return element >= 0 && element <= 1;
  });
  return shares ? std::optional(ValueRange{least < 1 ? 0 : 1, most > 0 ? 1 : 0}) : std::nullopt;
}

// Nothing for more than kMaxElements.
std::optional<std::size_t> elements(const TensorView& tensor) {
  std::size_t count = 1;
  for (const std::int64_t size : tensor.sizes) {
    if (size < 0 || size > static_cast<std::int64_t>(kMaxElements)) return std::nullopt;
    count *= static_cast<std::size_t>(size);
    if (count > kMaxElements) return std::nullopt;
  }
  return count;
}

// Samples are contiguous in practice; of others the same number of elements from their start is looked at.
std::optional<ValueRange> range_of(const TensorView& tensor, std::size_t count, const ZipReader& archive) {
  const std::optional<std::string_view> bytes = archive.find("data/" + tensor.key);
  if (!bytes || tensor.offset < 0) return std::nullopt;
  const auto first = static_cast<std::size_t>(tensor.offset);
  if (tensor.storage_type == "torch.LongStorage") return range_of<std::int64_t>(*bytes, first, count);
  if (tensor.storage_type == "torch.IntStorage") return range_of<std::int32_t>(*bytes, first, count);
  if (tensor.storage_type == "torch.ShortStorage") return range_of<std::int16_t>(*bytes, first, count);
  if (tensor.storage_type == "torch.CharStorage") return range_of<std::int8_t>(*bytes, first, count);
  if (tensor.storage_type == "torch.ByteStorage") return range_of<std::uint8_t>(*bytes, first, count);
  if (tensor.storage_type == "torch.FloatStorage") return range_of_shares<float>(*bytes, first, count);
  if (tensor.storage_type == "torch.DoubleStorage") return range_of_shares<double>(*bytes, first, count);
  return std::nullopt;
}

}  // namespace

std::vector<std::optional<ValueRange>> read_sample_ranges(std::string_view file, const std::string& name) {
  if (!is_archive(file)) return {};
  const ZipReader archive(file, name);
  const std::optional<std::string_view> code = archive.find("data.pkl");
  if (!code) return {};
  Machine machine(*code);
  const std::optional<Index> root = machine.run();
  const std::optional<std::vector<Index>> leaves = root ? machine.leaves(*root) : std::nullopt;
  if (!leaves) return {};
  std::vector<std::optional<ValueRange>> result;
  std::size_t left = kMaxElements;  // many tensors may lie in one storage
  for (const Index leaf : *leaves) {
    const TensorView* const tensor = machine.as<TensorView>(leaf);
    const std::optional<std::size_t> count = tensor == nullptr ? std::nullopt : elements(*tensor);
    const bool look = count && *count <= left;
    result.push_back(look ? range_of(*tensor, *count, archive) : std::nullopt);
    if (look) left -= *count;
  }
  return result;
}

}  // namespace espalier
