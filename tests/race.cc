// A data race on purpose: the test around it expects ThreadSanitizer's report.

#include <thread>

int main() {
  int shared = 0;
  std::thread other([&] { shared = 1; });
  shared = 2;
  other.join();
  return shared == 0 ? 1 : 0;
}
