#include "espalier/frontend/srepr.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "espalier/base/check.h"
#include "testing/refusal.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kB = "Symbol('s0', positive=True, integer=True)";

std::int64_t at(const std::string& text, std::int64_t batch) {
  return parse_srepr(text, "s0").at(BatchSize(batch));
}

std::string error_of(const std::string& text) {
  return testing::refusal([&] { parse_srepr(text, "s0"); });
}

TEST(Srepr, EveryFunctionComputesWhatPythonDoes) {
  EXPECT_EQ(at(kB, 7), 7);
  EXPECT_EQ(at("Integer(-3)", 7), -3);
  EXPECT_EQ(at("Add(Integer(1), " + kB + ", " + kB + ")", 7), 15);
  EXPECT_EQ(at("Mul(Integer(6), " + kB + ")", 7), 42);
  EXPECT_EQ(at("Pow(" + kB + ", Integer(2))", 7), 49);
  EXPECT_EQ(at("FloorDiv(Add(Integer(-1), " + kB + "), Integer(2))", 8), 3);
  EXPECT_EQ(at("Mod(" + kB + ", Integer(4))", 7), 3);
  EXPECT_EQ(at("PythonMod(Mul(Integer(-1), " + kB + "), Integer(4))", 7), 1);  // -7 mod 4 = 1
  EXPECT_EQ(at("Max(Integer(4), " + kB + ")", 3), 4);
  EXPECT_EQ(at("Min(Integer(4), " + kB + ")", 3), 3);
  EXPECT_EQ(at("CleanDiv(Mul(Integer(6), " + kB + "), Integer(3))", 7), 14);
  EXPECT_EQ(at("ModularIndexing(" + kB + ", Integer(2), Integer(3))", 11), 2);  // 11 // 2 mod 3
  EXPECT_EQ(at("ceiling(Mul(Rational(1, 2), " + kB + "))", 7), 4);
  EXPECT_EQ(at("CeilToInt(IntTrueDiv(" + kB + ", Integer(4)))", 9), 3);
  EXPECT_EQ(at("floor(Mul(Rational(1, 2), " + kB + "))", 7), 3);
  EXPECT_EQ(at("TruncToInt(ToFloat(" + kB + "))", 7), 7);
  EXPECT_EQ(at("Identity(" + kB + ")", 7), 7);
}

TEST(Srepr, FractionsThatCancelAreExact) {
  // b/2 + 1/2 at 7: 4, though 7/2 and 1/2 each round to another sum.
  EXPECT_EQ(at("Add(Mul(Rational(1, 2), " + kB + "), Rational(1, 2))", 7), 4);
  EXPECT_EQ(at("Mul(" + kB + ", Pow(Integer(2), Integer(-1)), Integer(4))", 7), 14);
  EXPECT_EQ(at("Mul(Pow(" + kB + ", Integer(-1)), Pow(" + kB + ", Integer(2)))", 7), 7);
}

TEST(Srepr, ConstantsFold) {
  EXPECT_EQ(parse_srepr("Mul(Integer(6), Integer(7))", ""), SizeExpr(42));
  EXPECT_EQ(parse_srepr("Mul(Integer(6), " + kB + ")", "s0").text(), "6*b");
}

TEST(Srepr, EveryMistakeIsNamed) {
  EXPECT_THAT(error_of("Symbol('s1')"), HasSubstr("depends on 's1', which is not the batch"));
  EXPECT_THAT(error_of("Symbol('s0"), HasSubstr("without its closing quote"));
  EXPECT_THAT(error_of("Symbol('s0', positive)"), HasSubstr("has no '='"));
  EXPECT_THAT(error_of("Sqrt(Integer(2))"), HasSubstr("Sqrt, which is not supported"));
  EXPECT_THAT(error_of("sin(Integer(2), Integer(3))"), HasSubstr("sin, which is not supported"));
  EXPECT_THAT(error_of("Mod(Integer(2))"), HasSubstr("gives Mod 1 arguments"));
  EXPECT_THAT(error_of("Integer(99999999999999999999)"), HasSubstr("no whole number up to 2^62"));
  EXPECT_THAT(error_of("Rational(1, 0)"), HasSubstr("fraction over 0"));
  EXPECT_THAT(error_of("Pow(Integer(2), Integer(65))"), HasSubstr("has the power 65"));
  EXPECT_THAT(error_of("Pow(Integer(2), Integer(63))"), HasSubstr("overflows"));
  EXPECT_THAT(error_of("FloorDiv(Integer(1), Integer(0))"), HasSubstr("divided by zero"));
  EXPECT_THAT(error_of("Integer(1) Integer(2)"), HasSubstr("goes on after its end"));
  EXPECT_THAT(error_of("Add(Integer(1)"), HasSubstr("has no ')'"));
  EXPECT_THAT(error_of(""), HasSubstr("no function or number"));
  std::string deep;
  for (int i = 0; i < 200; ++i) deep += "Add(";
  EXPECT_THAT(error_of(deep), HasSubstr("nested deeper"));
  EXPECT_THAT(error_of(std::string(70000, 'A')), HasSubstr("longer than"));
  std::string wide = "Add(" + kB;
  for (int i = 0; i < 1500; ++i) wide += "," + kB;
  EXPECT_THAT(error_of(wide + ")"), HasSubstr("more than 1000 parts"));
}

TEST(Srepr, SymbolsAreListedOnce) {
  EXPECT_THAT(srepr_symbols("Add(Symbol('s0'), Symbol('u1'), Symbol('s0'))"), ElementsAre("s0", "u1"));
}

}  // namespace
}  // namespace espalier
