//! The router of a mixture of experts at batch 1: norm, logits and selection in one kernel (`router.cu`).

use fulmen_core::{ActivationForm, DType, MulMatCall, Projection, RmsNormCall, RouteCall, WeightArg};

use super::routing::RouteRule;
use super::{Launched, apart, q8_activations, type_name, wide};
use crate::device::Caps;
use crate::forward::Forwarding;
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

/// Blocks of the cluster.
const CLUSTER: u32 = 8;
const WARPS: u32 = 16;
/// Rows that are multiplied at once.
const GROUP: u32 = 16;
/// The longest row.
const MAX_K: u32 = 8192;
/// The most experts.
const MAX_ROUTED: u32 = 512;

kernel_args! {
    file: "router.cu";
    constants: [CLUSTER, WARPS, GROUP, MAX_K, MAX_ROUTED];

    #[derive(Debug)]
    struct RouterArgs {
        x: DevicePtr,
        gamma: DevicePtr,
        normed: DevicePtr,
        normed_q8: DevicePtr,
        w: DevicePtr,
        bias: DevicePtr,
        logits: DevicePtr,
        weights: DevicePtr,
        ids: DevicePtr,
        rule: RouteRule,
        epsilon: f32,
        inverse_k: f32,
        k: u32,
        rows_per_block: u32,
        held_rows: u32,
        unused: u32,
    }
}

/// The most bytes of a weight that a block holds: a block of the kernel before fits beside it.
const HELD_BYTES: u32 = 144 << 10;

/// The calls that one kernel runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Router<'a> {
    norm: Option<&'a RmsNormCall>,
    logits: &'a MulMatCall,
    projection: &'a Projection,
    route: &'a RouteCall,
}

impl<'a> Router<'a> {
    /// `None` if the calls do not follow from each other, or if the kernel does not take them.
    pub(crate) fn new(
        caps: Caps,
        norm: Option<&'a RmsNormCall>,
        logits: &'a MulMatCall,
        route: &'a RouteCall,
    ) -> Option<Router<'a>> {
        let [projection] = logits.parts.as_slice() else { return None };
        let router = Router { norm, logits, projection, route };
        let WeightArg { ptr, dtype, rows } = projection.weight;
        let chained = norm.is_none_or(|norm| norm.feeds(logits.input, logits.m, logits.k))
            && projection.output == route.logits
            && rows == route.n_experts;
        let addresses = norm.map_or([logits.input; 3], |norm| [norm.input, norm.gamma, norm.output]);
        let taken = caps.has_clusters()
            && logits.m == 1
            && route.m == 1
            && logits.residual.is_none()
            && !logits.batch_invariant
            && logits.k.is_multiple_of(8)
            && logits.k <= MAX_K
            && rows <= MAX_ROUTED
            && matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
            && wide(&addresses) == 1
            && ptr.is_multiple_of(16);
        (chained && taken && router.is_apart()).then_some(router)
    }

    /// Whether what the blocks write does not overlap what other blocks still read.
    fn is_apart(&self) -> bool {
        let Router { norm, logits, route, .. } = *self;
        let row = u64::from(logits.k) * 4;
        let (experts, top) = (u64::from(route.n_experts) * 4, u64::from(route.route.top) * 4);
        let input = norm.map_or(logits.input, |norm| norm.input);
        let mut written = vec![(route.logits, experts), (route.weights, top), (route.ids, top)];
        written.extend(norm.map(|norm| (norm.output, row)));
        let each_apart =
            (0..written.len()).all(|at| written[..at].iter().all(|other| apart(*other, written[at])));
        each_apart && written.iter().all(|range| apart((input, row), *range))
    }

    /// Whether the norm's result can be forwarded in this form: as q8 activations.
    pub(crate) fn forwards(&self, activation: &ActivationForm) -> bool {
        self.q8_form().is_some_and(|form| form == *activation)
    }

    fn q8_form(&self) -> Option<ActivationForm> {
        let norm = self.norm.filter(|norm| q8_activations::can_forward(norm.width))?;
        Some(q8_activations::form(norm.output, norm.width))
    }

    pub(crate) fn launch(&self, queue: &mut Queue, forwarding: &Forwarding<'_>) -> Launched {
        let Router { norm, logits, projection, route } = *self;
        let k = logits.k;
        let rows_per_block = route.n_experts.div_ceil(CLUSTER);
        let row_bytes = k * if projection.weight.dtype == DType::F32 { 4 } else { 2 };
        let held_rows = match rows_per_block * row_bytes <= HELD_BYTES {
            true => rows_per_block,
            false => HELD_BYTES / row_bytes / GROUP * GROUP,
        };
        let args = RouterArgs {
            x: norm.map_or(logits.input, |norm| norm.input),
            gamma: norm.map_or(0, |norm| norm.gamma),
            normed: norm.map_or(0, |norm| norm.output),
            normed_q8: self.q8_form().and_then(|form| forwarding.output(&form)).unwrap_or(0),
            w: projection.weight.ptr,
            bias: projection.bias.unwrap_or(0),
            logits: route.logits,
            weights: route.weights,
            ids: route.ids,
            rule: RouteRule::new(route),
            epsilon: norm.map_or(0.0, |norm| norm.epsilon),
            inverse_k: 1.0 / k as f32,
            k,
            rows_per_block,
            held_rows,
            unused: 0,
        };
        let entry = format!("router_{}", type_name(projection.weight.dtype));
        let launch = Launch::new("router", &entry, CLUSTER, 32 * WARPS).shared(held_rows * row_bytes);
        queue.launch(&Launch { cluster: CLUSTER, ..launch }, &args)?;
        Ok(1)
    }
}
