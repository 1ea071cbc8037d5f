#include "espalier/cost/operator_table.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace espalier {
namespace {

constexpr std::uint32_t kIn0 = 1, kIn1 = 2, kIn2 = 4;
constexpr std::uint32_t kOut = kSavesOutput, kIntegers = kSavesIntegers, kProduct = kSavesProduct;

constexpr OperatorFamily elementwise(std::uint32_t saves, double flops, Keeps keeps = Keeps::kNothing) {
  OperatorFamily family;
  family.family = Family::kElementwise;
  family.saves = saves;
  family.flops_per_element = flops;
  family.keeps = keeps;
  return family;
}

constexpr OperatorFamily without_gradient(Family kind) {
  OperatorFamily family;
  family.family = kind;
  family.has_gradient = false;
  return family;
}

constexpr OperatorFamily contraction(Family kind, ContractionForm form, std::uint32_t first_operand = 0) {
  OperatorFamily family;
  family.family = kind;
  family.contraction = form;
  family.first_operand = first_operand;
  family.saves = kProduct;
  family.reorders = kind == Family::kConvolution;
  return family;
}

constexpr OperatorFamily lookup() {
  OperatorFamily family;
  family.family = Family::kLookup;
  family.saves = kIntegers;
  return family;
}

constexpr OperatorFamily attention() {
  OperatorFamily family;
  family.family = Family::kAttention;
  family.saves = kIn0 | kIn1 | kIn2 | (1u << 3) | kOut;  // the fourth input is a mask
  family.keeps = Keeps::kLogSumExp;
  family.reorders = true;  // backward adds up q's gradient in a buffer of its own
  return family;
}

constexpr OperatorFamily recurrent() {
  OperatorFamily family;
  family.family = Family::kRecurrent;
  family.saves = kIn0;
  family.keeps = Keeps::kGates;
  return family;
}

// Where names come from.
enum class Known : std::uint8_t { kInAten, kElsewhere };

// Names of one kind, separated by spaces.
struct Names {
  std::string_view names;
  AtenOperator facts = {};
  std::optional<OperatorFamily> family = {};
  Known known = Known::kInAten;
};

constexpr std::array kTable = {
    // Element by element, and reductions, norms and losses: bound by memory.
    Names{"abs clamp clamp_max clamp_min clip hardsigmoid hardswish hardtanh leaky_relu square "
          "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d avg_pool1d "
          "avg_pool2d avg_pool3d std var var_mean",
          {},
          elementwise(kIn0, 2)},
    Names{"add neg rsub sub upsample_nearest1d upsample_nearest2d upsample_nearest3d mean sum",
          {},
          elementwise(0, 1)},
    Names{"addcdiv atan2 div divide hypot lerp maximum minimum prelu true_divide cdist cosine_similarity "
          "binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss huber_loss kl_div "
          "l1_loss margin_ranking_loss mse_loss smooth_l1_loss",
          {},
          elementwise(kIn0 | kIn1, 4)},
    Names{"addcmul mul multiply cross dot outer", {}, elementwise(kProduct, 1)},
    Names{"celu cos elu erf expm1 gelu glu log log1p log2 mish pow selu silu sin softplus",
          {},
          elementwise(kIn0, 16)},
    Names{"clone _to_copy copy pixel_shuffle constant_pad_nd pad cat concat concatenate hstack repeat "
          "repeat_interleave stack tile vstack fill fill_diagonal pixel_unshuffle channel_shuffle "
          "native_channel_shuffle reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d "
          "replication_pad2d replication_pad3d diagonal_scatter select_scatter slice_scatter "
          "as_strided_scatter column_stack dstack row_stack fliplr flipud rot90",
          {},
          elementwise(0, 0)},
    Names{"absolute acos acosh angle arccos arccosh arcsin arcsinh arctan arctanh asin asinh atan atanh "
          "cosh deg2rad erfc erfinv exp2 frac hardshrink log10 log_sigmoid log_sigmoid_forward logit "
          "nan_to_num negative rad2deg sgn sinc sinh softshrink tan trunc fix",
          {},
          elementwise(kIn0, 16)},
    Names{"arctan2 copysign float_power fmax fmin fmod logaddexp logaddexp2 subtract xlogy",
          {},
          elementwise(kIn0 | kIn1, 16)},
    Names{"exp reciprocal rsqrt sigmoid sqrt tanh", {}, elementwise(kOut, 12)},
    Names{"masked_fill masked_scatter where tril triu", {}, elementwise(kIntegers, 1)},
    Names{"relu relu6 threshold", {}, elementwise(kOut, 1)},
    Names{"adaptive_max_pool2d max_pool1d max_pool2d max_pool3d max_pool1d_with_indices "
          "max_pool2d_with_indices max_pool3d_with_indices",
          {},
          elementwise(kIn0, 9, Keeps::kIndices)},
    Names{"upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_trilinear3d",
          {},
          elementwise(0, 8)},
    Names{"group_norm native_group_norm", {}, elementwise(kIn0 | kIn1, 8, Keeps::kGroupStatistics)},
    Names{"layer_norm native_layer_norm rms_norm _fused_rms_norm",
          {},
          elementwise(kIn0 | kIn1, 8, Keeps::kRowStatistics)},
    Names{"cross_entropy_loss", {}, elementwise(kIntegers, 18, Keeps::kProbabilities)},
    Names{"nll_loss nll_loss2d nll_loss_forward nll_loss_nd", {}, elementwise(kIn0 | kIn1, 1)},
    Names{"amax amin frobenius_norm linalg_vector_norm norm prod logsumexp", {}, elementwise(kIn0 | kOut, 2)},
    Names{"max median min kthvalue", {}, elementwise(0, 2, Keeps::kIndices)},
    // Along a dimension.
    Names{"softmax log_softmax _softmax _log_softmax", {.along_dim = true}, elementwise(kOut, 16)},
    Names{"special_softmax special_log_softmax cumprod cummax cummin logcumsumexp msort unique_dim",
          {.along_dim = true}},
    Names{"cumsum diff", {.along_dim = true}, elementwise(0, 1)},
    Names{"sort topk", {.along_dim = true}, elementwise(0, 2, Keeps::kIndices)},
    Names{"argsort searchsorted", {.along_dim = true}, without_gradient(Family::kElementwise)},
    Names{"flip roll", {.along_dim = true}, elementwise(0, 0)},
    // Statistics of the batch.
    Names{"batch_norm native_batch_norm _native_batch_norm_legit cudnn_batch_norm _batch_norm_with_update",
          {.updates_statistics = true},
          elementwise(kIn0 | kIn1, 8, Keeps::kChannelStatistics)},
    Names{
        "instance_norm", {.updates_statistics = true}, elementwise(kIn0 | kIn1, 8, Keeps::kGroupStatistics)},
    // Matrix products, convolutions, attention, recurrent layers.
    Names{"addbmm addmm addmv baddbmm", {}, contraction(Family::kMatrix, ContractionForm::kProduct, 1)},
    Names{"bilinear einsum tensordot", {}, contraction(Family::kMatrix, ContractionForm::kEinsum)},
    Names{"bmm chain_matmul linear matmul mm mv linalg_matmul _grouped_mm",
          {},
          contraction(Family::kMatrix, ContractionForm::kProduct)},
    Names{"conv1d conv2d conv3d convolution _convolution",
          {},
          contraction(Family::kConvolution, ContractionForm::kConvolution)},
    Names{"conv_transpose1d conv_transpose2d conv_transpose3d",
          {},
          contraction(Family::kConvolution, ContractionForm::kTransposedConvolution)},
    Names{"lstm_cell gru_cell", {}, recurrent()},
    Names{"lstm gru rnn_relu rnn_tanh", {.random = AtenRandom::kDropout}, recurrent()},
    Names{"scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu "
          "_scaled_dot_product_efficient_attention _scaled_dot_product_flash_attention",
          {.random = AtenRandom::kAttention},
          attention()},
    // Look-ups.
    Names{
        "embedding embedding_bag _embedding_bag gather index index_add index_put index_select masked_select "
        "scatter scatter_add take take_along_dim",
        {},
        lookup()},
    // The memory of the first tensor argument, or a part of it.
    Names{"adjoint broadcast_to conj dsplit hsplit imag linalg_diagonal mH mT matrix_H moveaxis positive "
          "real resolve_conj resolve_neg swapdims tensor_split unsafe_chunk unsafe_split "
          "unsafe_split_with_sizes view_as_complex view_as_real vsplit _reshape_alias lift atleast_1d "
          "atleast_2d atleast_3d _conj _neg_view",
          {.alias = AtenAlias::kView}},
    Names{"alias as_strided chunk diagonal expand expand_as lift_fresh movedim narrow numpy_T permute "
          "select slice split split_with_sizes squeeze swapaxes t transpose unbind unflatten unfold "
          "unsqueeze view view_as",
          {.alias = AtenAlias::kView},
          without_gradient(Family::kView)},
    Names{"_unsafe_view", {.alias = AtenAlias::kView}, elementwise(0, 0)},
    Names{"detach", {.alias = AtenAlias::kView, .differentiable = false}, without_gradient(Family::kView)},
    Names{"contiguous flatten reshape", {.alias = AtenAlias::kIfStrided}, elementwise(0, 0)},
    Names{"ravel reshape_as", {.alias = AtenAlias::kIfStrided}},
    Names{"to type_as", {.alias = AtenAlias::kIfSameType}, elementwise(0, 0)},
    Names{"broadcast_tensors", {.alias = AtenAlias::kBroadcast}, without_gradient(Family::kView)},
    Names{"meshgrid", {.alias = AtenAlias::kBroadcast}},
    // Random numbers.
    Names{"alpha_dropout dropout",
          {.alias = AtenAlias::kIfInactive, .random = AtenRandom::kDropout},
          elementwise(0, 8, Keeps::kMask)},
    Names{"feature_alpha_dropout feature_dropout",
          {.alias = AtenAlias::kIfInactive, .random = AtenRandom::kDropout},
          elementwise(0, 2, Keeps::kChannelMask)},
    Names{"native_dropout", {.random = AtenRandom::kDropout}, elementwise(0, 8, Keeps::kMask)},
    Names{"rrelu rrelu_with_noise", {.random = AtenRandom::kDropout}},
    Names{"bernoulli rand rand_like randint randn randn_like",
          {.random = AtenRandom::kAlways, .differentiable = false},
          without_gradient(Family::kGenerate)},
    Names{"binomial multinomial poisson normal randint_like randperm exponential uniform random cauchy "
          "geometric log_normal normal_functional",
          {.random = AtenRandom::kAlways, .differentiable = false}},
    // Without a gradient.
    Names{"bitwise_and bitwise_not bitwise_or ceil floor floor_divide remainder round sign __and__ __or__ "
          "__xor__ all any argmax argmin bucketize one_hot",
          {},
          without_gradient(Family::kElementwise)},
    Names{"lift_fresh_copy", {}, without_gradient(Family::kView)},
    Names{"eq equal ge gt greater isfinite isinf isnan le less logical_and logical_not logical_or lt ne "
          "nonzero",
          {.differentiable = false},
          without_gradient(Family::kElementwise)},
    Names{"histc greater_equal isclose isin isneginf isposinf isreal less_equal logical_xor not_equal "
          "signbit gcd lcm",
          {.differentiable = false},
          without_gradient(Family::kElementwise)},
    Names{"empty_permuted empty_strided logspace new_empty_strided bartlett_window blackman_window "
          "hamming_window hann_window kaiser_window fft_fftfreq fft_rfftfreq tensor _tensor_constant zero",
          {.differentiable = false},
          without_gradient(Family::kGenerate)},
    Names{"arange empty eye full linspace new_empty new_full new_ones new_zeros ones scalar_tensor zeros "
          "empty_like full_like ones_like zeros_like range",
          {.differentiable = false},
          without_gradient(Family::kGenerate)},
    // What the analytic model does not know: it takes them for memory-bound operators that keep their inputs.
    Names{"bitwise_left_shift bitwise_right_shift bitwise_xor complex conj_physical digamma frexp "
          "heaviside i0 igamma igammac ldexp lgamma mvlgamma nextafter polar polygamma special_entr "
          "special_erf special_erfc special_erfcx special_erfinv special_exp2 special_expit special_expm1 "
          "special_i0 special_i0e special_i1 special_i1e special_log1p special_log_ndtr special_logit "
          "special_ndtr special_ndtri special_round special_sinc special_xlog1py special_xlogy __lshift__ "
          "__rshift__ alias_copy detach_copy expand_copy permute_copy slice_copy select_copy split_copy "
          "squeeze_copy t_copy transpose_copy unbind_copy unfold_copy unsqueeze_copy view_copy addr "
          "conv_depthwise3d conv_tbc ger inner kron linalg_cross linalg_multi_dot linalg_vecdot vdot "
          "rnn_relu_cell rnn_tanh_cell adaptive_max_pool1d adaptive_max_pool3d max_unpool2d max_unpool3d "
          "_upsample_bilinear2d_aa _upsample_bicubic2d_aa grid_sampler grid_sampler_2d grid_sampler_3d "
          "affine_grid_generator col2im im2col renorm norm_except_dim _weight_norm _weight_norm_interface "
          "pairwise_distance pdist local_response_norm ctc_loss _ctc_loss hinge_embedding_loss "
          "multi_margin_loss multilabel_margin_loss nll_loss2d_forward poisson_nll_loss soft_margin_loss "
          "triplet_margin_loss aminmax bincount count_nonzero cov corrcoef dist linalg_matrix_norm "
          "linalg_norm mode nanmean nanmedian nansum nuclear_norm quantile nanquantile std_mean trace "
          "special_logsumexp sum_to_size block_diag cartesian_prod combinations diag diag_embed diagflat "
          "_unsafe_index index_copy index_fill _unsafe_index_put index_reduce narrow_copy put "
          "scatter_reduce pad_sequence trapezoid trapz vander cumulative_trapezoid gradient segment_reduce "
          "tril_indices triu_indices fft_fft fft_fft2 fft_fftn fft_fftshift fft_hfft fft_hfft2 fft_hfftn "
          "fft_ifft fft_ifft2 fft_ifftn fft_ifftshift fft_ihfft fft_ihfft2 fft_ihfftn fft_irfft fft_irfft2 "
          "fft_irfftn fft_rfft fft_rfft2 fft_rfftn _fft_c2c _fft_c2r _fft_r2c stft istft cholesky "
          "cholesky_inverse cholesky_solve det inverse logdet lu_solve linalg_cholesky linalg_cholesky_ex "
          "linalg_cond linalg_det linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh linalg_inv "
          "linalg_inv_ex linalg_lstsq linalg_lu linalg_lu_factor linalg_lu_solve linalg_matrix_exp "
          "linalg_matrix_power linalg_matrix_rank linalg_pinv linalg_qr linalg_slogdet linalg_solve "
          "linalg_solve_ex linalg_solve_triangular linalg_svd linalg_svdvals linalg_tensorinv "
          "linalg_tensorsolve linalg_vander matrix_exp matrix_power pinverse qr slogdet svd "
          "triangular_solve",
          {}},
    // Not of aten: ONNX, Python operators of an export, layers of published profiles.
    // gradient_sum and update: of training graphs (expand_backward.h). What a forward graph's figures do not
    // hold costs nothing there either; an update's time is the optimizer's.
    Names{"gradient_sum update", {}, without_gradient(Family::kView), Known::kElsewhere},
    Names{"getitem sym_size sym_numel sym_stride size shape identity assert_tensor_metadata assert_scalar "
          "assert_async wrap_with_set_grad_enabled parameter input output placeholder",
          {},
          without_gradient(Family::kView),
          Known::kElsewhere},
    Names{"constantofshape constant", {}, without_gradient(Family::kGenerate), Known::kElsewhere},
    Names{"not lessorequal greaterorequal", {}, without_gradient(Family::kElementwise), Known::kElsewhere},
    Names{"cast float half resize", {}, elementwise(0, 0), Known::kElsewhere},
    Names{"mean_dim reducemean reducesum interpolate globalaveragepool",
          {},
          elementwise(0, 1),
          Known::kElsewhere},
    Names{"safe_softmax logsoftmax", {}, elementwise(kOut, 16), Known::kElsewhere},
    Names{"leakyrelu averagepool", {}, elementwise(kIn0, 2), Known::kElsewhere},
    Names{"logsigmoid fastgelu", {}, elementwise(kIn0, 16), Known::kElsewhere},
    Names{"normalize", {}, elementwise(kIn0 | kOut, 2), Known::kElsewhere},
    Names{"maxpool", {}, elementwise(kIn0, 9, Keeps::kIndices), Known::kElsewhere},
    Names{"dropout1d dropout2d dropout3d", {}, elementwise(0, 2, Keeps::kChannelMask), Known::kElsewhere},
    Names{"layernormalization skiplayernormalization simplifiedlayernormalization",
          {},
          elementwise(kIn0 | kIn1, 8, Keeps::kRowStatistics),
          Known::kElsewhere},
    Names{"native_batch_norm_legit_functional native_batch_norm_legit_no_training batchnormalization",
          {},
          elementwise(kIn0 | kIn1, 8, Keeps::kChannelStatistics),
          Known::kElsewhere},
    Names{"cross_entropy", {}, elementwise(kIntegers, 18, Keeps::kProbabilities), Known::kElsewhere},
    Names{"trilu", {}, elementwise(kIntegers, 1), Known::kElsewhere},
    Names{"bitshift bitwiseand bitwisenot bitwiseor bitwisexor mod",
          {},
          without_gradient(Family::kElementwise),
          Known::kElsewhere},
    Names{"eyelike randomnormal randomnormallike randomuniform randomuniformlike",
          {},
          without_gradient(Family::kGenerate),
          Known::kElsewhere},
    Names{"castlike depthtospace spacetodepth reversesequence", {}, elementwise(0, 0), Known::kElsewhere},
    Names{"quantizelinear dequantizelinear dynamicquantizelinear upsample",
          {},
          elementwise(0, 2),
          Known::kElsewhere},
    Names{"shrink softsign swish quickgelu biasgelu "
          "thresholdedrelu",
          {},
          elementwise(kIn0, 16),
          Known::kElsewhere},
    Names{"reducel1 reducel2 reducelogsum reducelogsumexp reducemax reducemin reduceprod reducesumsquare "
          "lppool "
          "globallppool globalmaxpool hardmax imagescaler",
          {},
          elementwise(kIn0, 2),
          Known::kElsewhere},
    Names{"gridsample roialign rotaryembedding", {}, elementwise(kIn0 | kIn1, 8), Known::kElsewhere},
    Names{"groupnormalization instancenormalization",
          {},
          elementwise(kIn0 | kIn1, 8, Keeps::kGroupStatistics),
          Known::kElsewhere},
    Names{"rmsnormalization skipsimplifiedlayernormalization lpnormalization meanvariancenormalization lrn",
          {},
          elementwise(kIn0 | kIn1, 8, Keeps::kRowStatistics),
          Known::kElsewhere},
    Names{"softmaxcrossentropyloss negativeloglikelihoodloss",
          {},
          elementwise(kIntegers, 18, Keeps::kProbabilities),
          Known::kElsewhere},
    Names{"gathernd onehot scatterelements scatternd tensorscatter", {}, lookup(), Known::kElsewhere},
    Names{"fusedmatmul transposematmul matmulinteger matmulnbits",
          {},
          contraction(Family::kMatrix, ContractionForm::kProduct),
          Known::kElsewhere},
    Names{"fusedconv convinteger",
          {},
          contraction(Family::kConvolution, ContractionForm::kConvolution),
          Known::kElsewhere},
    Names{"groupqueryattention", {}, attention(), Known::kElsewhere},
    Names{"embedding_bag_forward_only gatherelements", {}, lookup(), Known::kElsewhere},
    Names{
        "gemm batch_matmul", {}, contraction(Family::kMatrix, ContractionForm::kProduct), Known::kElsewhere},
    Names{"conv cudnn_convolution mkldnn_convolution",
          {},
          contraction(Family::kConvolution, ContractionForm::kConvolution),
          Known::kElsewhere},
    Names{"convtranspose",
          {},
          contraction(Family::kConvolution, ContractionForm::kTransposedConvolution),
          Known::kElsewhere},
    Names{"multiheadattention scaled_dot_product_cudnn_attention attention sdpa",
          {},
          attention(),
          Known::kElsewhere},
    Names{"rnn", {}, recurrent(), Known::kElsewhere},
};

template <class Each>
void for_each_name(const Names& row, const Each& each) {
  for (std::string_view rest = row.names; !rest.empty();) {
    const std::size_t end = std::min(rest.find(' '), rest.size());
    each(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
}

std::vector<AtenOperator> make_index() {
  std::vector<AtenOperator> index;
  for (const Names& row : kTable) {
    if (row.known != Known::kInAten) continue;
    for_each_name(row, [&](std::string_view name) {
      index.push_back(row.facts);
      index.back().name = name;
    });
  }
  std::stable_sort(index.begin(), index.end(),
                   [](const AtenOperator& a, const AtenOperator& b) { return a.name < b.name; });
  return index;
}

bool dunder(std::string_view name) {
  return name.size() > 4 && name.starts_with("__") && name.ends_with("__");
}

}  // namespace

const AtenOperator* find_aten(std::string_view name) {
  static const std::vector<AtenOperator> kIndex = make_index();
  const auto look_up = [](std::string_view key) -> const AtenOperator* {
    const auto found =
        std::lower_bound(kIndex.begin(), kIndex.end(), key,
                         [](const AtenOperator& facts, std::string_view k) { return facts.name < k; });
    return found != kIndex.end() && found->name == key ? &*found : nullptr;
  };
  if (const AtenOperator* const facts = look_up(name)) return facts;
  if (!writes_first_argument(name)) return nullptr;
  if (!dunder(name)) return look_up(name.substr(0, name.size() - 1));
  // "__iand__" is "__and__" in place.
  return name == "__iand__"      ? look_up("__and__")
         : name == "__ior__"     ? look_up("__or__")
         : name == "__ixor__"    ? look_up("__xor__")
         : name == "__ilshift__" ? look_up("__lshift__")
         : name == "__irshift__" ? look_up("__rshift__")
                                 : nullptr;
}

const OperatorFamily* find_family(std::string_view name) {
  static const std::unordered_map<std::string, OperatorFamily> kFamilies = [] {
    std::unordered_map<std::string, OperatorFamily> families;
    for (const Names& row : kTable) {
      if (!row.family) continue;
      for_each_name(row, [&](std::string_view known) { families.emplace(base_name(known), *row.family); });
    }
    return families;
  }();
  const auto found = kFamilies.find(std::string(name));
  return found == kFamilies.end() ? nullptr : &found->second;
}

bool writes_first_argument(std::string_view name) {
  if (dunder(name)) return name.starts_with("__i") && name != "__invert__";
  return name.ends_with('_');
}

}  // namespace espalier
