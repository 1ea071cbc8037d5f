#include "espalier/planners/pipeline/segment_filling.h"

#include <algorithm>

namespace espalier {

bool SegmentFilling::take(Duration limit) {
  if (end_ == pieces_.size()) return false;
  const std::vector<PassedTensor>& outputs = pieces_.segment(end_, 1).again.outputs;
  const std::size_t begun = begins_.size();
  const Held before = held_, closed_before = closed_;
  if (begins_.empty() ||
      pieces_.segment(begins_.back(), end_ + 1 - begins_.back()).again.insides > most_insides_) {
    closed_ = held_;
    begins_.push_back(end_);
  }
  held_ = closed_;
  add(pieces_.segment(begins_.back(), ++end_ - begins_.back()), held_);
  leaving_.insert(leaving_.end(), outputs.begin(), outputs.end());
  if (need(held_) <= device_.memory && (held_.work <= limit || with_whole_ones().work <= limit)) return true;
  leaving_.resize(leaving_.size() - outputs.size());
  begins_.resize(begun);
  held_ = before;
  closed_ = closed_before;
  --end_;
  return false;
}

SegmentFilling::Split SegmentFilling::with_whole_ones() const {
  Split split{begins_.size(), held_.work, need(held_)};
  std::size_t end = end_;
  for (Held held = held_; split.first_whole > 0;) {
    const std::size_t first = begins_[split.first_whole - 1];
    const Segment& segment = pieces_.segment(first, end - first);
    held.kept -= std::min(held.kept, segment.again.kept);
    held.work -= segment.again.work(device_.kind);
    add(segment.whole, held);
    if (need(held) > device_.memory) break;
    split = {split.first_whole - 1, held.work, need(held)};
    end = first;
  }
  return split;
}

void SegmentFilling::add(const Segment& segment, Held& held) const {
  held.state += segment.state;
  add(segment.again, held);
}

void SegmentFilling::add(const SegmentWay& way, Held& held) const {
  held.work += way.work(device_.kind);
  held.kept += way.kept;
  held.insides = std::max(held.insides, way.insides);
  for (const PassedTensor& read : way.reads) {
    const bool elsewhere = is_elsewhere(read.tensor);
    if ((!read.kept && !elsewhere) || !held.tensors.insert(read.tensor).second) continue;
    (elsewhere ? held.slots : held.kept) += read.bytes;
  }
  for (const PassedTensor& output : way.outputs) {
    if (output.kept && held.tensors.insert(output.tensor).second) held.kept += output.bytes;
  }
}

bool SegmentFilling::is_elsewhere(TensorId tensor) const {
  return std::ranges::none_of(leaving_, [&](const PassedTensor& output) { return output.tensor == tensor; });
}

Bytes SegmentFilling::need(const Held& held) const {
  Bytes gradients;  // that come back
  for (const PassedTensor& output : leaving_) {
    if (output.gradient && output.last_reader >= end_) gradients += output.bytes;
  }
  const std::int64_t w = device_.in_flight;
  return held.state + w * (held.kept + gradients) + (w + 1) * held.slots + held.insides;
}

}  // namespace espalier
