#include "espalier/frontend/aten_table.h"

#include <algorithm>
#include <array>
#include <vector>

namespace espalier {
namespace {

// Names of one kind, separated by spaces.
struct Names {
  std::string_view names;
  AtenOperator facts = {};
};

constexpr std::array kTable = {
    // Element by element, matrix products, convolutions, pooling, norms, losses: fresh outputs.
    Names{"abs absolute acos acosh add addcdiv addcmul angle arccos arccosh arcsin arcsinh arctan arctan2 "
          "arctanh "
          "asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_not bitwise_or "
          "bitwise_right_shift "
          "bitwise_xor ceil celu clamp clamp_max clamp_min clip clone complex conj_physical copysign cos "
          "cosh deg2rad "
          "digamma div divide elu erf erfc erfinv exp exp2 expm1 float_power floor floor_divide fmax fmin "
          "fmod frac "
          "frexp gelu glu hardshrink hardsigmoid hardswish hardtanh heaviside hypot i0 igamma igammac ldexp "
          "leaky_relu "
          "lerp lgamma log log10 log1p log2 log_sigmoid log_sigmoid_forward logaddexp logaddexp2 logit "
          "masked_fill "
          "masked_scatter maximum minimum mish mul multiply mvlgamma nan_to_num neg negative nextafter polar "
          "polygamma "
          "pow prelu rad2deg reciprocal relu relu6 remainder round rsqrt rsub selu sgn sigmoid sign silu sin "
          "sinc sinh "
          "softplus softshrink sqrt square sub subtract tan tanh threshold true_divide trunc fix where xlogy "
          "special_entr special_erf special_erfc special_erfcx special_erfinv special_exp2 special_expit "
          "special_expm1 "
          "special_i0 special_i0e special_i1 special_i1e special_log1p special_log_ndtr special_logit "
          "special_ndtr "
          "special_ndtri special_round special_sinc special_xlog1py special_xlogy __and__ __or__ __xor__ "
          "__lshift__ "
          "__rshift__ _to_copy copy fill lift_fresh_copy alias_copy detach_copy expand_copy permute_copy "
          "slice_copy "
          "select_copy split_copy squeeze_copy t_copy transpose_copy unbind_copy unfold_copy unsqueeze_copy "
          "view_copy"},
    Names{"addbmm addmm addmv addr baddbmm bilinear bmm cdist chain_matmul conv1d conv2d conv3d "
          "conv_depthwise3d "
          "conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution _convolution cross dot "
          "einsum "
          "embedding embedding_bag _embedding_bag ger inner kron linear linalg_cross linalg_matmul "
          "linalg_multi_dot "
          "linalg_vecdot _grouped_mm matmul mm mv outer tensordot vdot lstm_cell gru_cell rnn_relu_cell "
          "rnn_tanh_cell"},
    Names{"adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d "
          "adaptive_max_pool1d "
          "adaptive_max_pool2d adaptive_max_pool3d avg_pool1d avg_pool2d avg_pool3d max_pool1d max_pool2d "
          "max_pool3d "
          "max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices max_unpool2d max_unpool3d "
          "upsample_bicubic2d upsample_bilinear2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa "
          "upsample_linear1d "
          "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_trilinear3d grid_sampler "
          "grid_sampler_2d "
          "grid_sampler_3d affine_grid_generator col2im im2col pixel_shuffle pixel_unshuffle channel_shuffle "
          "native_channel_shuffle constant_pad_nd pad reflection_pad1d reflection_pad2d reflection_pad3d "
          "replication_pad1d replication_pad2d replication_pad3d"},
    Names{"group_norm layer_norm native_group_norm native_layer_norm rms_norm _fused_rms_norm renorm "
          "norm_except_dim _weight_norm _weight_norm_interface cosine_similarity pairwise_distance pdist "
          "local_response_norm"},
    Names{"batch_norm instance_norm native_batch_norm _native_batch_norm_legit cudnn_batch_norm "
          "_batch_norm_with_update",
          {.updates_statistics = true}},
    Names{"binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss cross_entropy_loss "
          "ctc_loss "
          "_ctc_loss hinge_embedding_loss huber_loss kl_div l1_loss margin_ranking_loss mse_loss "
          "multi_margin_loss "
          "multilabel_margin_loss nll_loss nll_loss2d nll_loss2d_forward nll_loss_forward nll_loss_nd "
          "poisson_nll_loss smooth_l1_loss soft_margin_loss triplet_margin_loss"},
    Names{"all amax amin aminmax any argmax argmin bincount count_nonzero cov corrcoef dist frobenius_norm "
          "linalg_matrix_norm linalg_norm linalg_vector_norm max mean median min mode nanmean nanmedian "
          "nansum norm "
          "nuclear_norm prod quantile nanquantile std std_mean sum trace var var_mean kthvalue logsumexp "
          "special_logsumexp sum_to_size"},
    Names{"softmax log_softmax _softmax _log_softmax special_softmax special_log_softmax cumsum cumprod "
          "cummax cummin "
          "logcumsumexp sort argsort msort topk flip roll diff unique_dim searchsorted",
          {.along_dim = true}},
    Names{
        "block_diag cartesian_prod cat column_stack combinations concat concatenate diag diag_embed diagflat "
        "diagonal_scatter dstack fliplr flipud gather hstack index _unsafe_index index_add index_copy "
        "index_fill "
        "index_put _unsafe_index_put index_reduce index_select masked_select narrow_copy put repeat "
        "repeat_interleave rot90 row_stack scatter scatter_add scatter_reduce select_scatter slice_scatter "
        "as_strided_scatter stack take take_along_dim tile tril triu vstack pad_sequence trapezoid trapz "
        "vander "
        "cumulative_trapezoid gradient segment_reduce bucketize one_hot tril_indices triu_indices"},
    Names{"histc eq equal ge gt greater greater_equal isclose isfinite isin isinf isnan isneginf isposinf "
          "isreal "
          "le less "
          "less_equal logical_and logical_not logical_or logical_xor lt ne not_equal signbit nonzero gcd lcm "
          "arange empty empty_permuted empty_strided eye full linspace logspace new_empty new_empty_strided "
          "new_full "
          "new_ones new_zeros ones scalar_tensor zeros empty_like full_like ones_like zeros_like range "
          "bartlett_window "
          "blackman_window hamming_window hann_window kaiser_window fft_fftfreq fft_rfftfreq tensor "
          "_tensor_constant",
          {.differentiable = false}},
    Names{"fft_fft fft_fft2 fft_fftn fft_fftshift fft_hfft fft_hfft2 fft_hfftn fft_ifft fft_ifft2 fft_ifftn "
          "fft_ifftshift fft_ihfft fft_ihfft2 fft_ihfftn fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 "
          "fft_rfftn "
          "_fft_c2c _fft_c2r _fft_r2c stft istft cholesky cholesky_inverse cholesky_solve det inverse logdet "
          "lu_solve "
          "linalg_cholesky linalg_cholesky_ex linalg_cond linalg_det linalg_eig linalg_eigh linalg_eigvals "
          "linalg_eigvalsh linalg_inv linalg_inv_ex linalg_lstsq linalg_lu linalg_lu_factor linalg_lu_solve "
          "linalg_matrix_exp linalg_matrix_power linalg_matrix_rank linalg_pinv linalg_qr linalg_slogdet "
          "linalg_solve "
          "linalg_solve_ex linalg_solve_triangular linalg_svd linalg_svdvals linalg_tensorinv "
          "linalg_tensorsolve "
          "linalg_vander matrix_exp matrix_power pinverse qr slogdet svd triangular_solve"},
    // The first tensor argument's memory, or a part of it.
    Names{"adjoint alias as_strided broadcast_to chunk conj diagonal dsplit expand expand_as hsplit imag "
          "lift_fresh linalg_diagonal mH mT matrix_H moveaxis movedim narrow numpy_T permute positive real "
          "resolve_conj resolve_neg select slice split split_with_sizes squeeze swapaxes swapdims t "
          "tensor_split "
          "transpose unbind unflatten unfold unsafe_chunk unsafe_split unsafe_split_with_sizes unsqueeze "
          "view view_as "
          "view_as_complex view_as_real vsplit _reshape_alias _unsafe_view lift atleast_1d atleast_2d "
          "atleast_3d "
          "_conj _neg_view",
          {.alias = AtenAlias::kView}},
    Names{"detach", {.alias = AtenAlias::kView, .differentiable = false}},
    Names{"contiguous flatten ravel reshape reshape_as", {.alias = AtenAlias::kIfStrided}},
    Names{"to type_as", {.alias = AtenAlias::kIfSameType}},
    Names{"broadcast_tensors meshgrid", {.alias = AtenAlias::kBroadcast}},
    // Random numbers.
    Names{"alpha_dropout dropout feature_alpha_dropout feature_dropout",
          {.alias = AtenAlias::kIfInactive, .random = AtenRandom::kDropout}},
    Names{"native_dropout rrelu rrelu_with_noise lstm gru rnn_relu rnn_tanh",
          {.random = AtenRandom::kDropout}},
    Names{"scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu "
          "_scaled_dot_product_efficient_attention _scaled_dot_product_flash_attention",
          {.random = AtenRandom::kAttention}},
    Names{"bernoulli binomial multinomial poisson normal rand rand_like randint randint_like randn "
          "randn_like randperm "
          "exponential uniform random cauchy geometric log_normal normal_functional",
          {.random = AtenRandom::kAlways, .differentiable = false}},
    Names{"zero", {.differentiable = false}},
};

std::vector<AtenOperator> make_index() {
  std::vector<AtenOperator> index;
  for (const Names& row : kTable) {
    for (std::string_view rest = row.names; !rest.empty();) {
      const std::size_t end = std::min(rest.find(' '), rest.size());
      AtenOperator facts = row.facts;
      facts.name = rest.substr(0, end);
      index.push_back(facts);
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
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

bool writes_first_argument(std::string_view name) {
  if (dunder(name)) return name.starts_with("__i") && name != "__invert__";
  return name.ends_with('_');
}

}  // namespace espalier
