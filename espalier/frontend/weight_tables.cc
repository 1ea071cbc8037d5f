#include "espalier/frontend/weight_tables.h"

#include "espalier/base/check.h"
#include "espalier/frontend/decode.h"

namespace espalier {
namespace {

// Elements from the first to the last that a view touches; nothing if it has none. Throws nothing: a value
// that does not fit 2^62 counts as the largest.
std::uint64_t extent(const StoredTensor& view) {
  __extension__ using Wide = unsigned __int128;
  constexpr std::uint64_t kMost = std::uint64_t{1} << 62;
  Wide last = 0;
  for (std::size_t i = 0; i < view.sizes.size(); ++i) {
    if (view.sizes[i] == 0) return 0;
    last += static_cast<Wide>(view.sizes[i] - 1) * static_cast<std::uint64_t>(view.strides[i]);
    if (last >= kMost) return kMost;
  }
  return static_cast<std::uint64_t>(last) + 1;
}

std::vector<std::int64_t> constants(const std::vector<SizeExpr>& sizes, const ProgramPlace& place) {
  std::vector<std::int64_t> result;
  for (const SizeExpr& size : sizes) {
    const std::optional<std::int64_t> value = size.constant();
    if (!value || *value < 0)
      place.fail("has a stored tensor with a size or stride that is not a whole number");
    result.push_back(*value);
  }
  return result;
}

}  // namespace

WeightTables read_weight_tables(const ZipReader& archive, const std::string& file, const std::string& model) {
  WeightTables tables;
  tables.file_ = file;
  const std::pair<std::string, std::string> sources[] = {
      {"data/weights/" + model + "_weights_config.json", "data/weights/"},
      {"data/constants/" + model + "_constants_config.json", "data/constants/"}};
  for (const auto& [table_name, folder] : sources) {
    const std::optional<std::string_view> bytes = archive.find(table_name);
    if (!bytes) continue;
    const std::string where = file + ": " + table_name;
    const Json json = parse_json(*bytes, where);
    const ProgramPlace place{.file = where, .node = {}, .source = {}};
    const Json& config = member(json, "config", place);
    if (!config.is_object()) place.fail("has a 'config' that is not an object");
    for (auto it = config.begin(); it != config.end(); ++it) {
      const ProgramPlace here{.file = where + ": " + quote(it.key()), .node = {}, .source = {}};
      WeightTables::Row row;
      const Json* const pickled = find_member(it.value(), "use_pickle");
      row.pickled = pickled != nullptr && pickled->is_boolean() && pickled->get<bool>();
      const Json* const described = find_member(it.value(), "tensor_meta");
      if (described == nullptr || !described->is_object()) row.pickled = true;
      if (!row.pickled) {
        SizeReader sizes;
        const TensorMeta meta = read_tensor_meta(*described, sizes, here);
        row.stored.entry = folder + text(it.value(), "path_name", here);
        row.stored.dtype = meta.dtype;
        row.stored.sizes = constants(meta.sizes, here);
        row.stored.strides = constants(meta.strides, here);
        row.stored.storage_offset = constants({meta.storage_offset}, here).front();
        const std::optional<std::string_view> data = archive.find(row.stored.entry);
        row.missing = !data;
        row.stored.absent = data && data->empty() && extent(row.stored) > 0;
        if (data) {
          row.stored.offset = archive.offset(row.stored.entry);
          row.stored.size = data->size();
        }
      }
      tables.rows_.emplace(it.key(), std::move(row));
    }
  }
  return tables;
}

StoredTensor WeightTables::find(const std::string& name) const {
  const auto found = rows_.find(name);
  const std::string what = file_ + ": " + quote(name);
  if (found == rows_.end())
    throw InputError(what + " is read by the program, and the archive does not store it");
  const Row& row = found->second;
  if (row.pickled) {
    throw InputError(
        what + " is stored as a pickle (a tensor subclass or a custom object), which is never executed " +
        "here; export the model with plain tensors");
  }
  if (row.missing)
    throw InputError(what + " should lie in " + quote(row.stored.entry) + ", which is not in the archive");
  if (row.stored.absent) return row.stored;
  const std::uint64_t elements = extent(row.stored);
  const auto element = static_cast<std::uint64_t>(element_size(row.stored.dtype).count());
  const auto first = static_cast<std::uint64_t>(row.stored.storage_offset);
  if (elements > 0 && (first > row.stored.size || elements > row.stored.size ||
                       first + elements > row.stored.size / element)) {
    throw InputError(what + " reaches beyond the " + std::to_string(row.stored.size) +
                     " bytes stored for it");
  }
  return row.stored;
}

bool WeightTables::share_bytes(const StoredTensor& a, const StoredTensor& b) {
  if (a.entry != b.entry) return false;
  const auto begin = [](const StoredTensor& t) {
    return static_cast<std::uint64_t>(t.storage_offset) *
           static_cast<std::uint64_t>(element_size(t.dtype).count());
  };
  const auto end = [&](const StoredTensor& t) {
    return begin(t) + extent(t) * static_cast<std::uint64_t>(element_size(t.dtype).count());
  };
  return begin(a) < end(b) && begin(b) < end(a);
}

bool WeightTables::same_view(const StoredTensor& a, const StoredTensor& b) {
  return a.entry == b.entry && a.dtype == b.dtype && a.sizes == b.sizes && a.strides == b.strides &&
         a.storage_offset == b.storage_offset;
}

}  // namespace espalier
