#include "espalier/base/words.h"

#include <gmock/gmock.h>

#include "espalier/base/check.h"
#include "espalier/base/rng.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

std::vector<std::string> texts(const std::vector<Word>& words) {
  std::vector<std::string> result;
  for (const Word& word : words) result.push_back(word.quoted ? "<" + word.text + ">" : word.text);
  return result;
}

TEST(Words, AreSplitAtBlanksAndPunctuation) {
  EXPECT_THAT(texts(split_words("stage a  { b .. c}", "{}")),
              ::testing::ElementsAre("stage", "a", "{", "b", "..", "c", "}"));
}

TEST(Words, QuotesHoldAnything) {
  EXPECT_THAT(texts(split_words(R"(x "a { \"b\"" "")", "{}")),
              ::testing::ElementsAre("x", "<a { \"b\">", "<>"));
  EXPECT_THROW(split_words("\"open"), InputError);
  EXPECT_THROW(split_words("\"\\x\""), InputError);
}

TEST(Words, QuotedSyntaxIsAName) {
  EXPECT_TRUE(split_words("..")[0].is(".."));
  EXPECT_FALSE(split_words("\"..\"")[0].is(".."));
}

TEST(Words, AnyTextReadsBackAsOneWord) {
  Rng rng(1);
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    for (std::uint64_t n = rng.below(6); n > 0; --n) text += "ab \t\n\r\"\\{}#.=\x01"[rng.below(14)];
    const auto lines = split_lines("x " + quote_word(text, "{}", {".."}), "{}");
    ASSERT_EQ(lines.size(), 1u);
    ASSERT_EQ(lines[0].second.size(), 2u) << quote_word(text);
    EXPECT_EQ(lines[0].second[1].text, text);
  }
}

TEST(Words, LinesKeepTheirNumbersAndErrorsNameThem) {
  const auto lines = split_lines("\n# comment\n a b\n");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].first, 3u);
  EXPECT_THAT(testing::refusal([] { split_lines("a\n\"b"); }), ::testing::StartsWith("line 2: "));
}

TEST(Words, IntegersAreWholeAndInRange) {
  EXPECT_EQ(parse_integer("12", 0, 12), 12);
  for (const char* text : {"", "x", "1x", "1.5", "13", "-1", " 1", "99999999999999999999"}) {
    EXPECT_THROW(parse_integer(text, 0, 12), InputError) << text;
  }
}

}  // namespace
}  // namespace espalier
