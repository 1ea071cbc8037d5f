#include "espalier/graph/size_expr.h"

#include <gmock/gmock.h>

#include "espalier/base/check.h"
#include "espalier/base/rng.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using testing::refusal;

const SizeExpr kB = SizeExpr::batch();  // b as shapes are written

TEST(SizeExpr, ConstantsAreFolded) {
  EXPECT_EQ((SizeExpr(3) + 4) * 2, SizeExpr(14));
  EXPECT_EQ(floor_div(kB + 0, kB).constant(), std::nullopt);
  EXPECT_EQ(1 * kB + 0, kB);
  EXPECT_EQ(kB - 0, kB);
  EXPECT_EQ(SizeExpr(7).constant(), 7);
}

TEST(SizeExpr, TheConstantOfAProductStandsInFront) {
  EXPECT_EQ((kB * 12 * 16 * kB).text(), "192*(b*b)");
  EXPECT_EQ(kB * 2, 2 * kB);
  EXPECT_EQ((2 * kB) * (3 * kB), 6 * (kB * kB));
  EXPECT_EQ(((kB + 3) * kB).text(), "(b+3)*b") << "3 is not a factor";
  EXPECT_EQ(((3 + kB) * kB).text(), "(3+b)*b") << "nor where it stands first";
}

TEST(SizeExpr, DivisionAndModuloRoundAsInPython) {
  EXPECT_EQ(floor_div(SizeExpr(-7), 2), SizeExpr(-4));
  EXPECT_EQ(floor_div(SizeExpr(7), -2), SizeExpr(-4));
  EXPECT_EQ(floor_div(SizeExpr(-8), 2), SizeExpr(-4));
  EXPECT_EQ(mod(SizeExpr(-7), 3), SizeExpr(2));
  EXPECT_EQ(mod(SizeExpr(7), -3), SizeExpr(-2));
}

TEST(SizeExpr, IsEvaluatedAtABatch) {
  const BatchSize five(5);
  EXPECT_EQ((128 * kB).at(five), 640);
  EXPECT_EQ(floor_div(kB + 1, 2).at(five), 3);
  EXPECT_EQ(mod(kB, 3).at(five), 2);
  EXPECT_EQ(power(kB, 3).at(five), 125);
  EXPECT_EQ(max(kB, 4).at(five), 5);
  EXPECT_EQ(min(kB, 4).at(five), 4);
  EXPECT_EQ((2 - kB).at(five), -3);
  EXPECT_EQ(power(kB, 0).at(BatchSize(0)), 1);
}

TEST(SizeExpr, OverflowIsRefusedWhereItHappens) {
  const SizeExpr large = std::int64_t{1} << 61;
  EXPECT_EQ((large * 2).constant(), std::int64_t{1} << 62);
  EXPECT_THAT(refusal([&] { large * 4; }), HasSubstr("overflows"));
  EXPECT_THAT(refusal([&] { (large * kB).at(BatchSize(4)); }), HasSubstr("overflows"));
  EXPECT_THAT(refusal([&] { (large + large + kB).at(BatchSize(1)); }), HasSubstr("overflows"));
  EXPECT_THAT(refusal([&] { power(kB, 63).at(BatchSize(2)); }), HasSubstr("overflows"));
  EXPECT_EQ(power(SizeExpr(-1), large).constant(), 1);
  EXPECT_THAT(refusal([&] { power(kB, -1).at(BatchSize(2)); }), HasSubstr("negative power"));
  EXPECT_THAT(refusal([&] { floor_div(kB, 0).at(BatchSize(2)); }), HasSubstr("divided by zero"));
  EXPECT_THAT(refusal([&] { mod(SizeExpr(1), 0); }), HasSubstr("divided by zero"));
}

TEST(SizeExpr, LengthIsBounded) {
  SizeExpr sum = kB;
  EXPECT_THAT(refusal([&] {
                for (int i = 0; i < 12; ++i) sum = sum + sum;
              }),
              HasSubstr("more than 1000 parts"));
}

TEST(SizeExpr, ParserFollowsPythonsPrecedence) {
  EXPECT_EQ(parse_size_expr(" 1 + 2*b ").at(BatchSize(10)), 21);
  EXPECT_EQ(parse_size_expr("10-2-3"), SizeExpr(5));
  EXPECT_EQ(parse_size_expr("16//2*3"), SizeExpr(24));
  EXPECT_EQ(parse_size_expr("2*b**2").at(BatchSize(3)), 18);
  EXPECT_EQ(parse_size_expr("max(b, min(4,2))").at(BatchSize(1)), 2);
  EXPECT_EQ(parse_size_expr("-3+b").at(BatchSize(1)), -2);
}

TEST(SizeExpr, ParserNamesTheTextAndThePlace) {
  EXPECT_THAT(refusal([] { parse_size_expr("2*+b"); }),
              HasSubstr("size '2*+b': at column 3: expected a number"));
  EXPECT_THAT(refusal([] { parse_size_expr("b b"); }), HasSubstr("at column 3: expected an operator"));
  EXPECT_THAT(refusal([] { parse_size_expr("(b"); }), HasSubstr("expected ')'"));
  EXPECT_THAT(refusal([] { parse_size_expr("max(b)"); }), HasSubstr("expected ','"));
  EXPECT_THAT(refusal([] { parse_size_expr(""); }), HasSubstr("expected a number"));
  EXPECT_THAT(refusal([] { parse_size_expr("4611686018427387905"); }), HasSubstr("beyond 2^62"));
  EXPECT_THAT(refusal([] { parse_size_expr("4611686018427387904*2"); }),
              HasSubstr("at column 22: a size overflows"));
  EXPECT_THAT(refusal([] { parse_size_expr(std::string(200, '(') + "b" + std::string(200, ')')); }),
              HasSubstr("deeper than 100"));
  EXPECT_THAT(refusal([] { parse_size_expr(std::string(5000, '1')); }), HasSubstr("longer than 4096"));
  EXPECT_THAT(refusal([] { parse_size_expr(std::string("b\0b", 3)); }), HasSubstr("expected an operator"));
}

SizeExpr random_expr(Rng& rng, int depth) {
  if (depth == 0 || rng.below(5) == 0) {
    return rng.below(2) == 0 ? SizeExpr::batch() : SizeExpr(static_cast<std::int64_t>(rng.below(9)) - 2);
  }
  const SizeExpr x = random_expr(rng, depth - 1);
  const SizeExpr y = random_expr(rng, depth - 1);
  switch (rng.below(8)) {
    case 0:
      return x + y;
    case 1:
      return x - y;
    case 2:
    case 3:
      return x * y;
    case 4:
      return floor_div(x, y);
    case 5:
      return mod(x, y);
    case 6:
      return power(x, SizeExpr(static_cast<std::int64_t>(rng.below(3))));
    default:
      return rng.below(2) == 0 ? max(x, y) : min(x, y);
  }
}

TEST(SizeExpr, TextParsesBackToAnEqualValue) {
  Rng rng(1);
  int kept = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::optional<SizeExpr> expr;
    try {
      expr = random_expr(rng, 4);
    } catch (const InputError&) {
      continue;  // a constant part that divides by zero
    }
    ++kept;
    ASSERT_EQ(parse_size_expr(expr->text()), *expr) << expr->text();
  }
  EXPECT_GT(kept, 10'000);
}

}  // namespace
}  // namespace espalier
