//! Products of few rows with block-quantized weights, with an RMS norm before them if there is one: which kernels take a
//! call, and in which launches.

use fulmen_core::{DType, GateUpCall, MatPart, MulMatCall, RmsNormCall, WeightArg};

use super::f16_fragments::Image;
use super::{Launched, apart, gemm_small_m, gemv};
use crate::queue::Queue;

/// Weights of one launch at most.
pub(super) const MAX_PARTS: usize = 3;

/// Rows of activations at most: up to here 16 at a time, one after the other, are faster than making floats of the weights.
const MOST_ROWS: u32 = 48;

/// A norm that is computed on the way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Norm {
    pub(super) input: u64,
    pub(super) gamma: u64,
    pub(super) output: u64,
    pub(super) epsilon: f32,
}

/// One weight, its result, and what is added to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    pub(super) weight: WeightArg,
    pub(super) out: u64,
    pub(super) bias: u64,
    pub(super) residual: u64,
}

impl Product {
    /// Bytes of a row of the weight.
    pub(super) fn row_bytes(&self, k: u32) -> Option<u32> {
        self.weight.dtype.bytes(k as usize).ok().and_then(|bytes| u32::try_from(bytes).ok())
    }
}

/// The input of some products, with `m` rows of `k`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Input {
    pub(super) x: u64,
    pub(super) norm: Option<Norm>,
    pub(super) m: u32,
    pub(super) k: u32,
}

impl Input {
    fn new(x: u64, m: u32, k: u32, norm: Option<&RmsNormCall>) -> Input {
        let norm = norm.map(|norm| Norm {
            input: norm.input,
            gamma: norm.gamma,
            output: norm.output,
            epsilon: norm.epsilon,
        });
        Input { x, norm, m, k }
    }
}

/// Products of one launch: all of one format, or the first of Q4_K and the others of Q6_K, or gate and up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group<'a> {
    pub(super) parts: &'a [Product],
    /// How many have the first format.
    pub(super) first: usize,
    /// Whether they are gate and up.
    pub(super) pair: bool,
}

impl<'a> Group<'a> {
    /// Whether there are two formats.
    pub(super) fn mixed(&self) -> bool {
        self.first < self.parts.len()
    }

    /// What the entries for it are called, after the name of the file.
    pub(super) fn name(&self) -> String {
        let format = super::type_name(self.parts[0].weight.dtype);
        match (self.pair, self.mixed()) {
            (true, _) => format!("gate_up_{format}"),
            (_, true) => "q4_k_q6_k".to_owned(),
            _ => format.to_owned(),
        }
    }

    /// The launches that products need.
    fn all(mut left: &'a [Product]) -> Vec<Group<'a>> {
        let mut groups = Vec::new();
        while let Some(first) = left.first() {
            let same = left.iter().take_while(|part| part.weight.dtype == first.weight.dtype).count();
            let most = left.len().min(MAX_PARTS);
            let mixed = first.weight.dtype == DType::Q4_K
                && same < most
                && left[same..most].iter().all(|part| part.weight.dtype == DType::Q6_K);
            let count = if mixed { most } else { same.min(MAX_PARTS) };
            groups.push(Group {
                parts: &left[..count],
                first: if mixed { same } else { count },
                pair: false,
            });
            left = &left[count..];
        }
        groups
    }
}

/// The products of a call, if these kernels take it.
pub(crate) fn launch(queue: &mut Queue, call: &MulMatCall, norm: Option<&RmsNormCall>) -> Option<Launched> {
    let product = |part: &MatPart| Product {
        weight: part.weight,
        out: part.output,
        bias: part.bias.unwrap_or(0),
        residual: call.residual.unwrap_or(0),
    };
    let parts: Vec<Product> = call.parts.iter().map(product).collect();
    let input = Input::new(call.input, call.m, call.k, norm);
    if !takes(queue, &input, &parts) {
        return None;
    }
    run(queue, &input, &Group::all(&parts))
}

/// Both products of a gate-up call and what is made of them, if these kernels take it.
pub(crate) fn launch_gate_up(
    queue: &mut Queue,
    call: &GateUpCall,
    norm: Option<&RmsNormCall>,
) -> Option<Launched> {
    let product = |weight| Product { weight, out: call.output, bias: 0, residual: 0 };
    let parts = [product(call.gate), product(call.up)];
    let input = Input::new(call.input, call.m, call.k, norm);
    if call.gate.dtype != call.up.dtype || !takes(queue, &input, &parts) {
        return None;
    }
    run(queue, &input, &[Group { parts: &parts, first: 2, pair: true }])
}

/// Notes that a norm comes after a product, if it is of what the product makes.
pub(crate) fn expect(queue: &mut Queue, call: &MulMatCall, norm: &RmsNormCall) {
    let [part] = call.parts.as_slice() else { return };
    let (rows, width) = (call.m, part.weight.rows);
    let bytes = |rows: u32| u64::from(rows) * u64::from(width) * 4;
    let of_it = (norm.input, norm.rows, norm.width) == (part.output, rows, width);
    if of_it && apart((norm.gamma, bytes(1)), (part.output, bytes(rows))) {
        queue.request_forward(Some(Image::of_product(part.output, rows, width, Some(norm.gamma))));
    }
}

/// Whether what the launches write is apart from what the norm reads, and what they add from what the norm makes: some blocks write while
/// others still read. Calls that were not planned together may be otherwise.
fn apart_from(norm: &Norm, input: &Input, parts: &[Product]) -> bool {
    let floats = |width: u32| u64::from(input.m) * u64::from(width) * 4;
    let read = (norm.input, floats(input.k));
    let made = (norm.output, floats(input.k));
    apart(read, made)
        && parts.iter().all(|part| {
            let width = floats(part.weight.rows);
            apart(read, (part.out, width)) && (part.residual == 0 || apart(made, (part.residual, width)))
        })
}

fn takes(queue: &Queue, input: &Input, parts: &[Product]) -> bool {
    let block = |dtype| {
        use DType::*;
        matches!(dtype, Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | Q4_K | Q5_K | Q6_K)
    };
    queue.caps().has_clusters()
        && (1..=MOST_ROWS).contains(&input.m)
        && input.k > 0
        && input.x.is_multiple_of(16)
        && input
            .norm
            .is_none_or(|norm| [norm.input, norm.gamma, norm.output].iter().all(|p| p.is_multiple_of(16)))
        && input.norm.is_none_or(|norm| apart_from(&norm, input, parts))
        && !parts.is_empty()
        && parts.iter().all(|part| part.weight.rows > 0 && block(part.weight.dtype))
}

fn run(queue: &mut Queue, input: &Input, groups: &[Group<'_>]) -> Option<Launched> {
    if input.m == 1 { gemv::run(queue, input, groups) } else { gemm_small_m::run(queue, input, groups) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_over_the_input_of_their_norm_are_left_to_others() {
        let norm = Norm { input: 4096, gamma: 0, output: 1 << 20, epsilon: 1e-6 };
        let input = Input { x: norm.output, norm: Some(norm), m: 2, k: 256 };
        let writes = |out: u64| {
            let weight = WeightArg { ptr: 1 << 24, dtype: DType::Q4_K, rows: 64 };
            apart_from(&norm, &input, &[Product { weight, out, bias: 0, residual: 0 }])
        };
        // The input is 2048 bytes, the result 512.
        for (out, good) in
            [(4096 - 512, true), (4096 - 508, false), (4096, false), (6140, false), (6144, true)]
        {
            assert_eq!(writes(out), good, "{out}");
        }
        assert!(!apart_from(&Norm { output: norm.input, ..norm }, &input, &[]), "a norm in place");
        let adds = |residual: u64| {
            let weight = WeightArg { ptr: 1 << 24, dtype: DType::Q4_K, rows: 256 };
            apart_from(&norm, &input, &[Product { weight, out: 1 << 22, bias: 0, residual }])
        };
        assert!(adds(0) && adds(norm.input) && !adds(norm.output), "the norm's result as residual");
    }
}
