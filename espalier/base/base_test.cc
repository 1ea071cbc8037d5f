#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <functional>

#include "espalier/base/check.h"
#include "espalier/base/hash.h"
#include "espalier/base/host.h"
#include "espalier/base/json.h"
#include "espalier/base/rng.h"
#include "espalier/base/spelling.h"
#include "espalier/base/units.h"
#include "espalier/base/words.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using testing::refusal;

TEST(Units, ReadableTextKeepsFourSignificantDigits) {
  EXPECT_EQ(to_text(milliseconds(26)), "26.0 ms");
  EXPECT_EQ(to_text(Duration(1'250'000'000)), "1.25 s");
  EXPECT_EQ(to_text(Duration(812)), "812 ns");
  EXPECT_EQ(to_text(Bytes(3LL << 29)), "1.50 GiB");
  EXPECT_EQ(to_text(Bytes(12)), "12 B");
}

TEST(Units, ExactTextParsesBack) {
  for (const std::int64_t n :
       {0LL, 1LL, 999LL, 1'000LL, 2'500'000LL, 1'000'000'000LL, 123'456'789'012LL, 1LL << 62}) {
    EXPECT_EQ(parse_duration(to_exact_text(Duration(n))), Duration(n)) << n;
    EXPECT_EQ(parse_bytes(to_exact_text(Bytes(n))), Bytes(n)) << n;
  }
  EXPECT_EQ(parse_duration("2.5ms"), microseconds(2500));
  EXPECT_EQ(parse_bytes("80 GB"), Bytes(80'000'000'000));
  EXPECT_EQ(parse_bandwidth("25Gb"), 3'125'000'000);
  for (const std::int64_t rate :
       {std::int64_t{1}, std::int64_t{3'125'000'000}, (std::int64_t{1} << 61) + 1}) {
    EXPECT_EQ(parse_bandwidth(bandwidth_text(rate)), rate);
    EXPECT_EQ(parse_bytes(to_exact_text(Bytes(rate))), Bytes(rate)) << "whole numbers are exact beyond 2^53";
  }
}

TEST(Units, WrongTextSaysWhatWouldBeRight) {
  EXPECT_THAT(refusal([] { parse_duration("5 m"); }), HasSubstr("'5 m' is not a time: expected"));
  EXPECT_THAT(refusal([] { parse_bytes("lots"); }), HasSubstr("is not a size"));
  EXPECT_THAT(refusal([] { parse_bandwidth("0Gb"); }), HasSubstr("is not a bandwidth"));
  EXPECT_THROW(round_duration(1e30), InputError);
}

TEST(Units, WhatIsReadIsNotNegative) {
  EXPECT_THAT(refusal([] { parse_duration("-10us"); }), "'-10us' is negative: expected at least 0");
  EXPECT_THAT(refusal([] { parse_bytes("-1GB"); }), "'-1GB' is negative: expected at least 0");
  EXPECT_THROW(parse_bytes("-1KiB"), InputError);
}

TEST(Units, TransferTimeRoundsUpAndNeverOverflows) {
  EXPECT_EQ(transfer_time(Bytes(1), 3'000'000'000), Duration(1));
  EXPECT_EQ(transfer_time(Bytes(0), 1), Duration(0));
  EXPECT_EQ(transfer_time(Bytes(1'000'000), 1'000'000'000), milliseconds(1));
  EXPECT_EQ(transfer_time(Bytes::max(), 1), Duration(std::int64_t{1} << 62));
  // Beyond 63 bits of product, and the last within.
  EXPECT_EQ(transfer_time(Bytes(9'223'372'037), 1'000), Duration(9'223'372'037'000'000));
  EXPECT_EQ(transfer_time(Bytes(9'223'372'036), 1'000), Duration(9'223'372'036'000'000));
  EXPECT_EQ(transfer_time(Bytes(1'000'000'000'000), 7), Duration(std::int64_t{1} << 62));
  EXPECT_EQ(transfer_time(Bytes(1'000'000'000'001), 3'000'000'000'000), Duration(333'333'334));
  EXPECT_EQ(time_per_byte(Bytes(1), 1), Duration(1));
  EXPECT_EQ(time_per_byte(Bytes(3), 1'000), Duration(3));
  EXPECT_EQ(time_per_byte(Bytes(3'000'000'000'001), 9'000'001), Duration(27'000'003'000'009'001));
}

TEST(Check, FailureNamesExpressionAndValues) {
  const int stages = 3, devices = 2;
  EXPECT_THAT(refusal<InternalError>([&] { ESP_CHECK(stages <= devices, stages, devices); }),
              HasSubstr("stages <= devices with (stages, devices) = (3, 2)"));
}

TEST(StreamKey, DependsOnEveryPartAndItsPlace) {
  EXPECT_NE(stream_key(1, {2, 3, 4}), stream_key(1, {3, 2, 4}));
  EXPECT_NE(stream_key(1, {2, 3, 4}), stream_key(2, {2, 3, 4}));
  EXPECT_EQ(stream_key(1, {2, 3, 4}) >> 63, 0u);
}

TEST(RngTest, BelowIsInRangeAndReachesAllValues) {
  Rng rng(7);
  std::vector<int> seen(5);
  for (int i = 0; i < 1000; ++i) ++seen.at(rng.below(5));
  for (const int count : seen) EXPECT_GT(count, 150);
}

TEST(FingerprintTest, BordersBetweenTextsCount) {
  Fingerprint a, b;
  a.add("ab"), a.add("c");
  b.add("a"), b.add("bc");
  EXPECT_NE(a.value(), b.value());
  EXPECT_EQ(a.hex().size(), 16u);
}

TEST(ContentHashTest, IsXxh64HoweverTheBytesAreCut) {
  // Known values of the reference implementation.
  EXPECT_EQ(hex_text(content_hash("")), "ef46db3751d8e999");
  EXPECT_EQ(hex_text(content_hash("a")), "d24ec4f1a98c6e5b");
  EXPECT_EQ(hex_text(content_hash("abc")), "44bc2cf5ad770999");
  std::string bytes;
  for (int i = 0; i < 200; ++i) bytes += static_cast<char>(i * 37);
  for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
    ContentHash hash;
    hash.add(std::string_view(bytes).substr(0, cut));
    hash.add(std::string_view(bytes).substr(cut));
    EXPECT_EQ(hash.value(), content_hash(bytes)) << cut;
  }
  EXPECT_EQ(parse_hex_text(hex_text(content_hash(bytes))), content_hash(bytes));
  EXPECT_EQ(parse_hex_text("0123456789abcdeg"), std::nullopt);
}

TEST(Spelling, AStarInAPatternStandsForAnyCharacters) {
  EXPECT_TRUE(matches_pattern("encoder.*.weight", "encoder.layers.0.weight"));
  EXPECT_TRUE(matches_pattern("*bias", "bias"));
  EXPECT_FALSE(matches_pattern("encoder.*", "decoder.encoder.x"));
  EXPECT_FALSE(matches_pattern("w", "weight"));
}

TEST(Spelling, ARangeInAPatternStandsForAWholeNumber) {
  EXPECT_TRUE(matches_pattern("h.[0-5].*", "h.5.mlp"));
  EXPECT_FALSE(matches_pattern("h.[0-5].*", "h.6.mlp"));
  EXPECT_FALSE(matches_pattern("h.[0-5]*", "h.12.mlp")) << "12 is no 1";
  EXPECT_FALSE(matches_pattern("*[2]", "h.12")) << "12 is no 2";
  EXPECT_TRUE(matches_pattern("h.[0,2,4-7]", "h.2"));
  EXPECT_FALSE(matches_pattern("h.[0,2,4-7]", "h.3"));
  EXPECT_TRUE(matches_pattern("h.[10-12]", "h.11"));
  EXPECT_TRUE(matches_pattern("*.[1].*.[3]", "a.1.b.2.c.3"));
  EXPECT_TRUE(matches_pattern("n[3-41]", "n007"));
  EXPECT_FALSE(matches_pattern("h.[0-5]", "h."));
  EXPECT_TRUE(matches_pattern("h[a]", "h[a]")) << "a bracket without numbers stands for itself";
  EXPECT_TRUE(matches_pattern("h[", "h["));
  EXPECT_FALSE(matches_pattern("h.[0-999999999]", "h.1000000000")) << "numbers end at nine digits";
}

TEST(Spelling, RandomPatternsMatchAsALookAtEverySplitSays) {
  // Each part of a pattern in turn, over every way to divide the text.
  const auto in_range = [](std::string_view digits, int first, int last) {
    if (digits.empty() || digits.size() > 9 || digits.find_first_not_of("0123456789") != std::string::npos)
      return false;
    const int value = std::stoi(std::string(digits));
    return first <= value && value <= last;
  };
  const std::function<bool(std::vector<std::string>, std::string_view, char)> matches =
      [&](std::vector<std::string> parts, std::string_view text, char before) -> bool {
    if (parts.empty()) return text.empty();
    const std::string part = parts.front();
    parts.erase(parts.begin());
    const auto digit = [](char c) { return c >= '0' && c <= '9'; };
    for (std::size_t n = 0; n <= text.size(); ++n) {
      const char last = n > 0 ? text[n - 1] : before;
      const bool whole = n > 0 && !digit(before) && (n == text.size() || !digit(text[n]));
      const bool fits = part == "*"      ? true
                        : part[0] == '[' ? whole && in_range(text.substr(0, n), part[1] - '0', part[3] - '0')
                                         : text.substr(0, n) == part;
      if (fits && matches(parts, text.substr(n), last)) return true;
    }
    return false;
  };
  Rng rng(5);
  int found = 0;
  for (int round = 0; round < 20'000; ++round) {
    static const std::vector<std::string> kParts{"*", "[0-2]", "[1-9]", "a", ".", "1"};
    std::vector<std::string> parts;
    std::string pattern, text;
    for (std::size_t i = rng.below(6); i-- > 0;) parts.push_back(kParts[rng.below(kParts.size())]);
    for (const std::string& part : parts) pattern += part;
    for (std::size_t i = rng.below(8); i-- > 0;) text += "a.12"[rng.below(4)];
    const bool expected = matches(parts, text, ' ');
    found += expected;
    ASSERT_EQ(matches_pattern(pattern, text), expected) << pattern << " on " << text;
  }
  EXPECT_GT(found, 1000);
}

TEST(Spelling, WrongRangesAreNamed) {
  EXPECT_EQ(wrong_range("h.[0-5].*[1,2]"), std::nullopt);
  EXPECT_EQ(wrong_range("h.[0-5"), "'[0-5' has no end");
  EXPECT_EQ(wrong_range("h.[a-c]"), "'[a-c]': expected numbers, such as [0-5] or [0,2,4-7]");
  EXPECT_EQ(wrong_range("h.[]"), "'[]': expected numbers, such as [0-5] or [0,2,4-7]");
  EXPECT_EQ(wrong_range("h.[5-0]"), "'[5-0]': 5 is above 0");
  EXPECT_EQ(wrong_range("h.5]"), "']' ends no range");
}

TEST(JsonEdge, ErrorsNameFileAndPlace) {
  EXPECT_THAT(refusal([] { parse_json("{\"a\": 1,\n \"b\" 2}", "plan.json"); }),
              HasSubstr("plan.json: not JSON: parse error at line 2"));
  EXPECT_THAT(refusal([] { parse_json("{\"a\": 1, \"a\": 2}", "x"); }), HasSubstr("key 'a' stands twice"));
  EXPECT_THAT(refusal([] { parse_json(std::string(1000, '['), "x"); }), HasSubstr("nested deeper"));
  EXPECT_THAT(refusal([] { parse_json("[1e999]", "x"); }), HasSubstr("x"));
  const Json json = parse_json(R"({"stages": [{"micro_batch": -1}]})", "plan.json");
  const JsonCursor root(json, "plan.json");
  EXPECT_THAT(refusal([&] { root.at("stages").at(0).at("micro_batch").integer(1, 10); }),
              "plan.json: stages[0].micro_batch: is -1; expected a whole number from 1 to 10");
  EXPECT_THAT(refusal([&] { root.only({"stage", "after"}); }), HasSubstr("did you mean 'stage'?"));
}

TEST(JsonEdge, PrintsShortContainersOnOneLineAndParsesBack) {
  const Json json =
      parse_json(R"({"a":[1,2,3],"b":{"c":"x"},"long":[")" + std::string(90, 'x') + R"(","y"]})", "t");
  const std::string text = print_json(json);
  EXPECT_THAT(text, HasSubstr("\n  \"a\": [1,2,3],\n"));
  EXPECT_EQ(parse_json(text, "t"), json);
}

TEST(Words, Utf8IsToldFromOtherBytes) {
  for (const char* good : {"", "abc", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x8c\xb3", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(is_utf8(good)) << good;
  }
  // A lone tail, a cut head, overlong '/', a surrogate, beyond U+10FFFF.
  for (const char* bad :
       {"\x80", "\xc3", "\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xff"}) {
    EXPECT_FALSE(is_utf8(bad));
  }
}

TEST(Words, LinesAreUtf8ButCommentsMayBeAnything) {
  EXPECT_THAT(refusal([] { split_lines("a\nb \xff\n"); }), "line 2: is not UTF-8");
  EXPECT_EQ(split_lines("# \xff\na \xc3\xa9\n").size(), 1u);
}

TEST(InputError, StaysOnOneLineWhateverItQuotes) {
  EXPECT_STREQ(InputError("f: entry 'a\nb\x01'").what(), "f: entry 'a b '");
}

TEST(Host, AQuotaOfProcessorTimeIsWholeProcessorsAtLeastOne) {
  EXPECT_EQ(processors_of_quota("200000 100000"), 2);
  EXPECT_EQ(processors_of_quota("350000 100000"), 3);
  EXPECT_EQ(processors_of_quota("50000 100000"), 1);
  for (const char* none : {"max 100000", "-1 100000", "", "100000", "1 0"}) {
    EXPECT_EQ(processors_of_quota(none), std::nullopt) << none;
  }
}

TEST(Host, TheTextIsOfTheMachineAloneAndTheUsableProcessorsOfThisProcess) {
  const Host whole = this_host();
  EXPECT_GE(whole.processors, whole.usable);
  cpu_set_t before, one;
  CPU_ZERO(&before);
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu) {
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  const Host pinned = this_host();
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
  EXPECT_EQ(pinned.text(), whole.text());
  EXPECT_EQ(pinned.usable, 1);
}

}  // namespace
}  // namespace espalier
