#pragma once

// Keys, the smallest first. Made for what waits for links: mostly a few, on a thousand devices
// hundreds. The first 64 are a sorted array, all behind them a binary heap.
//
// The array: what is taken is known at once, and what follows from it starts while the processor still moves
// others aside. (Searching an unsorted array without a branch took fewer instructions but a fifth more time:
// each step then waits for the search before it.)

#include <algorithm>
#include <cstddef>
#include <vector>

namespace espalier::internal {

template <class Key>
class WaitingQueue {
 public:
  void clear() {
    head_ = end_ = 0;
    heap_.clear();
  }

  bool empty() const { return head_ == end_ && heap_.empty(); }

  void push(Key key) {
    if (!heap_.empty() && !(key < heap_.front())) return push_far(key);
    if (end_ == sorted_.size()) move_to_front();
    Key* at = sorted_.data() + end_++;
    const Key* const first = sorted_.data() + head_;
    for (; at > first && key < at[-1]; --at) *at = at[-1];
    *at = key;
    if (end_ - head_ > kSorted) push_far(sorted_[--end_]);
  }

  Key pop() {
    if (head_ != end_) return sorted_[head_++];
    std::pop_heap(heap_.begin(), heap_.end(), later);
    const Key key = heap_.back();
    heap_.pop_back();
    return key;
  }

 private:
  static constexpr std::size_t kSorted = 64, kRoom = 16 * kSorted;

  static bool later(const Key& a, const Key& b) { return b < a; }

  void move_to_front() {
    std::copy(sorted_.begin() + static_cast<std::ptrdiff_t>(head_), sorted_.end(), sorted_.begin());
    end_ -= head_;
    head_ = 0;
  }

  void push_far(Key key) {
    heap_.push_back(key);
    std::push_heap(heap_.begin(), heap_.end(), later);
  }

  std::vector<Key> sorted_ = std::vector<Key>(kRoom);  // from head_ to end_
  std::size_t head_ = 0, end_ = 0;
  std::vector<Key> heap_;  // none is smaller than a sorted one
};

}  // namespace espalier::internal
