#include "espalier/runtime/pieces.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "espalier/base/check.h"

namespace espalier {

at::Tensor joined(const DeviceView& view, std::uint32_t crossing, const std::vector<Piece>& pieces,
                  const SampleRange& wanted) {
  std::vector<at::Tensor> parts;
  for (std::int64_t next = wanted.begin; next < wanted.end;) {
    const auto piece = std::find_if(pieces.begin(), pieces.end(), [&](const Piece& each) {
      return each.samples.begin <= next && next < each.samples.end;
    });
    ESP_CHECK(piece != pieces.end(), crossing, next);
    const SampleRange samples{next, std::min(wanted.end, piece->samples.end)};
    parts.push_back(view.part(crossing, piece->value, piece->samples, samples));
    next = samples.end;
  }
  return parts.size() == 1 ? parts[0] : at::cat(parts, view.sample_dimension(crossing));
}

std::vector<Piece> added_up(const DeviceView& view, std::uint32_t crossing, const std::vector<Piece>& pieces,
                            const SampleRange& wanted) {
  std::vector<const Piece*> in_order;
  std::set<std::int64_t> borders{wanted.begin, wanted.end};
  for (const Piece& piece : pieces) {
    if (!overlap(piece.samples, wanted)) continue;
    in_order.push_back(&piece);
    borders.insert(common(piece.samples, wanted).begin);
    borders.insert(common(piece.samples, wanted).end);
  }
  std::stable_sort(in_order.begin(), in_order.end(), [](const Piece* a, const Piece* b) {
    return std::pair(a->reader, a->samples) < std::pair(b->reader, b->samples);
  });
  std::vector<Piece> sums;
  for (auto border = borders.begin(); std::next(border) != borders.end(); ++border) {
    const SampleRange samples{*border, *std::next(border)};
    Piece sum{{}, samples, {}};
    for (const Piece* const piece : in_order) {
      if (!overlap(piece->samples, samples)) continue;
      const at::Tensor value = view.part(crossing, piece->value, piece->samples, samples);
      if (!sum.value.defined()) sum.reader = piece->reader;
      sum.value = sum.value.defined() ? sum.value.add(value) : value;
    }
    if (sum.value.defined()) sums.push_back(std::move(sum));
  }
  return sums;
}

}  // namespace espalier
