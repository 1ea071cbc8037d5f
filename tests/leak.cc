// Leaks on purpose: the test around it expects LeakSanitizer's report.

#include <vector>

int main() {
  volatile auto* lost = new std::vector<int>(100);
  lost = nullptr;
  return lost == nullptr ? 0 : 1;
}
