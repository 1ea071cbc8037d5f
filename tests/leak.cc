// Leaks on purpose: the test around it expects LeakSanitizer's report.

#include <vector>

int main() {
  std::vector<int>* volatile lost = new std::vector<int>(100);  // volatile: else the compiler leaves it out
  lost = nullptr;
  return lost == nullptr ? 0 : 1;
}
