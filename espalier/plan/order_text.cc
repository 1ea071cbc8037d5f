// Lists of steps as text.
//
//   list   = { item }
//   item   = [count] "(" list ")" | [count] step | name ":" step
//   step   = F | B | I | W | R | A | U | T number
//
// Printing folds repetitions: at each place the period (up to kLongestPeriod steps) that covers most is
// written as a group, the shorter of two that cover as much. O(steps · kLongestPeriod).

#include <algorithm>
#include <charconv>

#include "espalier/base/words.h"
#include "espalier/plan/orders.h"

namespace espalier {
namespace {

constexpr std::string_view kOrderPunctuation = "()";
constexpr std::string_view kStepLetters = "FBIWRATU";
constexpr std::size_t kLongestPeriod = 64;
constexpr int kDeepest = 16;

class ListPrinter {
 public:
  ListPrinter(DeviceId device, const OrderNames& names)
      : names_(names), only_(names.only.at(device.index())) {}

  void print(const Step* begin, const Step* end, std::string& out) const {
    while (begin < end) {
      const auto [period, count] = repetition(begin, end);
      if (!out.empty() && out.back() != '(') out += ' ';
      if (count == 1) {
        out += step_text(*begin);
      } else if (period == 1 && is_short(*begin)) {
        out += std::to_string(count) + step_text(*begin);
      } else {
        out += std::to_string(count) + "(";
        print(begin, begin + period, out);
        out += ")";
      }
      begin += period * count;
    }
  }

 private:
  struct Repetition {
    std::size_t period = 1, count = 1;
  };
  static Repetition repetition(const Step* begin, const Step* end) {
    Repetition best;
    const auto left = static_cast<std::size_t>(end - begin);
    for (std::size_t period = 1; period <= std::min(kLongestPeriod, left / 2); ++period) {
      std::size_t same = 0;
      while (period + same < left && begin[same] == begin[period + same]) ++same;
      const std::size_t count = 1 + same / period;
      if (count > 1 && (best.count == 1 || count * period > best.count * best.period)) best = {period, count};
    }
    return best;
  }

  bool is_short(const Step& step) const {
    return step.kind == ActionKind::kTieSum || (only_ && step.is_of(*only_));
  }
  std::string step_text(const Step& step) const {
    std::string text(1, letter(step.kind));
    if (step.kind == ActionKind::kTieSum) return text + std::to_string(step.tie().index());
    if (is_short(step)) return text;
    return quote_word(names_.stages.at(step.stage().index()), kOrderPunctuation) + ":" + text;
  }

  const OrderNames& names_;
  std::optional<StageId> only_;
};

class ListParser {
 public:
  ListParser(const std::vector<Word>& words, DeviceId device, const OrderNames& names,
             const std::string& where)
      : words_(words), names_(names), only_(names.only.at(device.index())), where_(where) {}

  std::vector<Step> parse() {
    std::vector<Step> list = parse_items(0);
    if (next_ < words_.size()) fail("')' closes nothing");
    return list;
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const { throw InputError(where_ + ": " + problem); }
  static std::string shown(std::string_view text) { return "'" + std::string(text.substr(0, 60)) + "'"; }

  // Up to the end or to a ')' that is not taken.
  std::vector<Step> parse_items(int depth) {
    if (depth > kDeepest) fail("groups stand deeper than " + std::to_string(kDeepest));
    std::vector<Step> list;
    while (next_ < words_.size() && !words_[next_].is(")")) {
      const Word& word = words_[next_++];
      if (word.quoted) {
        append(list, {named_step(word.text)}, 1);
        continue;
      }
      std::string_view text = word.text;
      const bool names_stage = text.find(':') != std::string_view::npos;
      const std::size_t count = names_stage ? 1 : take_count(text);
      if (text.empty() || text == "(") {
        append(list, group(text.empty(), word.text, depth), count);
      } else {
        append(list, {names_stage ? step_of_stage(text) : step(text)}, count);
      }
    }
    return list;
  }

  std::vector<Step> group(bool has_count, std::string_view shown_word, int depth) {
    if (has_count && (next_ == words_.size() || !words_[next_++].is("("))) {
      fail("after " + shown(shown_word) + " expected an action or '('");
    }
    std::vector<Step> items = parse_items(depth + 1);
    if (next_ == words_.size()) fail("a '(' is not closed");
    ++next_;
    return items;
  }

  void append(std::vector<Step>& list, const std::vector<Step>& items, std::size_t count) {
    if (items.empty()) return;
    if (count > (names_.most_steps - std::min(names_.most_steps, list.size())) / items.size()) {
      fail("the list is longer than any of this plan: it has at most " + std::to_string(names_.most_steps) +
           " actions");
    }
    for (std::size_t i = 0; i < count; ++i) list.insert(list.end(), items.begin(), items.end());
  }

  // Digits at the beginning, which are taken away; 1 if there are none.
  std::size_t take_count(std::string_view& text) const {
    const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
    if (digits == 0) return 1;
    const std::int64_t count = integer(text.substr(0, digits), 1);
    text.remove_prefix(digits);
    return static_cast<std::size_t>(count);
  }
  std::int64_t integer(std::string_view text, std::int64_t least) const {
    try {
      return parse_integer(text, least, 1 << 30);
    } catch (const InputError& error) {
      fail(error.what());
    }
  }

  Step named_step(const std::string& stage) {
    if (next_ == words_.size() || words_[next_].quoted || words_[next_].text.front() != ':') {
      fail("after stage " + shown(stage) + " expected such as ':F'");
    }
    const std::string_view rest = words_[next_++].text;
    return {kind_of(rest.substr(1)), stage_named(stage)};
  }
  Step step_of_stage(std::string_view text) const {
    const std::size_t colon = text.rfind(':');
    return {kind_of(text.substr(colon + 1)), stage_named(text.substr(0, colon))};
  }
  Step step(std::string_view text) const {
    if (text.front() == 'T') {
      if (text.size() == 1) fail("T names no tie; expected such as T0");
      const std::int64_t tie = integer(text.substr(1), 0);
      if (static_cast<std::size_t>(tie) >= names_.ties) fail("there is no tie " + std::to_string(tie));
      return Step(TieId(static_cast<std::size_t>(tie)));
    }
    const ActionKind kind = kind_of(text);
    if (!only_) {
      fail(shown(text) + " names no stage; expected 'stage:" + std::string(text) +
           "', because this device has not exactly one");
    }
    return {kind, *only_};
  }
  ActionKind kind_of(std::string_view text) const {
    const std::size_t kind = text.size() == 1 ? kStepLetters.find(text.front()) : std::string_view::npos;
    if (kind == std::string_view::npos || static_cast<ActionKind>(kind) == ActionKind::kTieSum) {
      fail(shown(text) + " is no action; expected F, B, I, W, R, A or U, a count before it, or T0");
    }
    return static_cast<ActionKind>(kind);
  }
  StageId stage_named(std::string_view name) const {
    const auto found = std::find(names_.stages.begin(), names_.stages.end(), name);
    if (found == names_.stages.end()) fail("stage " + shown(name) + " is not in the plan");
    return StageId(static_cast<std::size_t>(found - names_.stages.begin()));
  }

  const std::vector<Word>& words_;
  const OrderNames& names_;
  std::optional<StageId> only_;
  const std::string& where_;
  std::size_t next_ = 0;
};

}  // namespace

std::string print_order(const std::vector<Step>& list, DeviceId device, const OrderNames& names) {
  std::string text;
  ListPrinter(device, names).print(list.data(), list.data() + list.size(), text);
  return text;
}

std::vector<Step> parse_order(std::string_view text, DeviceId device, const OrderNames& names,
                              const std::string& where) {
  std::vector<Word> words;
  try {
    words = split_words(text, kOrderPunctuation);
  } catch (const InputError& error) {
    throw InputError(where + ": " + error.what());
  }
  return parse_order(words, device, names, where);
}

std::vector<Step> parse_order(const std::vector<Word>& words, DeviceId device, const OrderNames& names,
                              const std::string& where) {
  return ListParser(words, device, names, where).parse();
}

std::string print_order_lists(const OrderLists& lists, const OrderNames& names) {
  std::size_t width = 0;
  for (std::size_t d = 0; d < lists.size(); ++d) {
    if (!lists[d].empty()) width = std::max(width, quote_word(names.devices.at(d), kOrderPunctuation).size());
  }
  std::string out;
  for (std::size_t d = 0; d < lists.size(); ++d) {
    if (lists[d].empty()) continue;
    std::string line = quote_word(names.devices[d], kOrderPunctuation);
    line.resize(std::max(width, line.size()), ' ');
    out += line + "  " + print_order(lists[d], DeviceId(d), names) + '\n';
  }
  return out;
}

OrderLists parse_order_lists(std::string_view text, const OrderNames& names) {
  OrderLists lists(names.devices.size());
  std::vector<bool> seen(lists.size());
  for (const auto& [number, line] : split_lines(text, kOrderPunctuation)) {
    const std::string where = "line " + std::to_string(number);
    const std::string& name = line.front().text;
    const auto found = std::find(names.devices.begin(), names.devices.end(), name);
    if (found == names.devices.end()) {
      throw InputError(where + ": device '" + name.substr(0, 60) + "' is not in the cluster");
    }
    const auto d = static_cast<std::size_t>(found - names.devices.begin());
    if (seen[d]) throw InputError(where + ": device '" + name.substr(0, 60) + "' stands here twice");
    seen[d] = true;
    const std::vector<Word> words(line.begin() + 1, line.end());
    lists[d] = parse_order(words, DeviceId(d), names, where);
  }
  return lists;
}

}  // namespace espalier
