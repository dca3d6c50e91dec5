use fulmen_core::{DType, Heads, KV_PAGE, NO_PAGE, pages_of, q8_0_to_pages, quant};
use fulmen_testkit::sample::some_of;
use fulmen_wgpu::{
    kernel::Caps,
    kernels::{
        KernelError, LaunchList,
        attention::{Attention, AttentionKernel, KvInput, attention, attention_by},
        kv::Cache,
        matmul::FragmentOps,
    },
};

use crate::common_rows::{draw, gpu, nmse};

fn heads(n_heads: u32, n_kv_heads: u32, head_dim: u32) -> Heads {
    Heads { n_heads, n_kv_heads, head_dim }
}

/// A cache with a page more than its sequences need.
fn new_cache(dtype: DType, n_seqs: u32, capacity: u32) -> Cache {
    let seq_pages = pages_of(capacity);
    Cache { dtype, n_pages: n_seqs * seq_pages + 1, n_seqs, seq_pages }
}

/// One query head over keys and values, `[len, head_dim]`.
fn attend(q: &[f64], k: &[f64], v: &[f64], scale: f64) -> Vec<f64> {
    let score = |key: &[f64]| scale * q.iter().zip(key).map(|(q, k)| q * k).sum::<f64>();
    let scores: Vec<f64> = k.chunks(q.len()).map(score).collect();
    let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut out = vec![0.0; q.len()];
    if top == f64::NEG_INFINITY && !scores.iter().any(|s| s.is_nan()) {
        return out;
    }
    let sum: f64 = scores.iter().map(|s| (s - top).exp()).sum();
    for (score, value) in scores.iter().zip(v.chunks(q.len())) {
        out.iter_mut().zip(value).for_each(|(out, v)| *out += (score - top).exp() / sum * v);
    }
    out
}

struct Case {
    heads: Heads,
    scale: f32,
    q: Vec<f32>,
    /// Keys and values, as bytes and as numbers.
    kv: [(Vec<u8>, Vec<f64>); 2],
    input: KvInput,
    positions: Vec<u32>,
    sequences: Vec<u32>,
    /// The pages of each sequence.
    pages: Vec<u32>,
}

impl Case {
    fn over_rows(m: usize, heads: Heads, scale: f32, rng: &mut fastrand::Rng) -> Self {
        let kv = [(); 2].map(|()| {
            let x = draw(rng, m * heads.kv_width() as usize, -1.0, 1.0);
            (bytemuck::cast_slice(&x).to_vec(), x.iter().map(|&x| f64::from(x)).collect())
        });
        let q = draw(rng, m * heads.q_width() as usize, -2.0, 2.0);
        Self {
            heads,
            scale,
            q,
            kv,
            input: KvInput::Rows,
            positions: (0..m as u32).collect(),
            sequences: vec![0; m],
            pages: Vec::new(),
        }
    }

    fn over_cache(
        cache: Cache,
        heads: Heads,
        positions: &[u32],
        sequences: Option<&[u32]>,
        rng: &mut fastrand::Rng,
    ) -> Self {
        let n = (cache.n_pages * KV_PAGE * heads.kv_width()) as usize;
        let mut pages: Vec<u32> = (0..cache.n_pages).collect();
        rng.shuffle(&mut pages);
        pages.truncate((cache.n_seqs * cache.seq_pages) as usize);
        let kv = [(); 2].map(|()| {
            let x = draw(rng, n, -1.0, 1.0);
            let mut bytes = vec![0; cache.dtype.bytes(n).unwrap()];
            quant::quantize(cache.dtype, &x, &mut bytes).unwrap();
            let x = quant::dequantize_to_vec(cache.dtype, &bytes, n).unwrap();
            if cache.dtype == DType::Q8_0 {
                bytes = q8_0_to_pages(heads.head_dim as usize, &bytes);
            }
            (bytes, x.iter().map(|&x| f64::from(x)).collect())
        });
        let q = draw(rng, positions.len() * heads.q_width() as usize, -2.0, 2.0);
        let input = KvInput::Cache { cache, sequences: sequences.is_some() };
        let sequences = sequences.map_or_else(|| vec![0; positions.len()], <[u32]>::to_vec);
        let scale = 1.0 / (heads.head_dim as f32).sqrt();
        Self { heads, scale, q, kv, input, positions: positions.to_vec(), sequences, pages }
    }

    fn spec(&self) -> Attention {
        Attention {
            m: self.positions.len() as u32,
            heads: self.heads,
            scores: self.scale.into(),
            kv: self.input,
        }
    }

    fn reference(&self) -> Vec<f64> {
        let Heads { n_heads, n_kv_heads, head_dim } = self.heads;
        let (dim, n_kv, group) = (head_dim as usize, n_kv_heads as usize, (n_heads / n_kv_heads) as usize);
        let mut out = Vec::new();
        for (row, q) in self.q.chunks(n_heads as usize * dim).enumerate() {
            let (position, sequence) = (self.positions[row] as usize, self.sequences[row] as usize);
            for (head, q) in q.chunks(dim).enumerate() {
                let q: Vec<f64> = q.iter().map(|&x| f64::from(x)).collect();
                let kv_head = head / group;
                let seen = |x: &[f64]| -> Vec<f64> {
                    match self.input {
                        KvInput::Rows => x
                            .chunks(n_kv * dim)
                            .take(row + 1)
                            .flat_map(|x| &x[kv_head * dim..][..dim])
                            .copied()
                            .collect(),
                        KvInput::Cache { cache, .. }
                            if position < cache.capacity() as usize && sequence < cache.n_seqs as usize =>
                        {
                            let row = |at: usize| {
                                let page = self.pages[sequence * cache.seq_pages as usize + at / 128];
                                (page as usize * n_kv + kv_head) * 128 + at % 128
                            };
                            (0..=position).flat_map(|at| &x[row(at) * dim..][..dim]).copied().collect()
                        }
                        KvInput::Cache { .. } => Vec::new(),
                    }
                };
                out.extend(attend(&q, &seen(&self.kv[0].1), &seen(&self.kv[1].1), f64::from(self.scale)));
            }
        }
        out
    }

    fn run(&self, kind: AttentionKernel, caps: &Caps) -> (Vec<f32>, Vec<u32>) {
        let plan = attention_by(kind, &self.spec(), caps).unwrap();
        let inputs: [&[u8]; 11] = [
            bytemuck::cast_slice(&self.q),
            &self.kv[0].0,
            &self.kv[1].0,
            bytemuck::cast_slice(&self.positions),
            bytemuck::cast_slice(&self.sequences),
            &[],
            &[],
            &[],
            &[],
            &[],
            bytemuck::cast_slice(&self.pages),
        ];
        let after = gpu().run_on(&plan, &inputs, &[&vec![0xa5; self.q.len() * 4], &[0; 16]]);
        (bytemuck::pod_collect_to_vec(&after.outputs[0]), bytemuck::pod_collect_to_vec(&after.outputs[1]))
    }

    fn check(&self, kind: AttentionKernel) {
        for caps in gpu().caps_variants() {
            self.check_with(kind, &caps);
        }
    }

    fn check_with(&self, kind: AttentionKernel, caps: &Caps) {
        let (got, fault) = self.run(kind, caps);
        let error = nmse(&got, &self.reference());
        let positions = &self.positions;
        let nan: Vec<usize> = (0..got.len()).filter(|&i| got[i].is_nan()).collect();
        assert!(error < allowed(kind), "{:?} {positions:?} {caps:?}: {error:e}, NaN at {nan:?}", self.spec());
        assert_eq!(fault, [0; 4]);
    }
}

/// Cooperative matrices take f16 queries and weights, whose rounding is 2^-12 of a value: 3e-8 in the
/// square, two or three times.
fn allowed(kind: AttentionKernel) -> f64 {
    if matches!(kind, AttentionKernel::PrefillCoop(_)) { 2e-7 } else { 1e-10 }
}

/// The cooperative-matrix kernel, emulated without cooperative matrices.
const EMULATED_COOP: AttentionKernel = AttentionKernel::PrefillCoop(FragmentOps::Emulated);

/// The emulated kernel in the cases of the sample: in software each compiles for half a minute.
fn emulated(case: &str) -> Option<AttentionKernel> {
    let cases = ["heads of 32", "heads of 48", "several sequences", "rising scores", "out of range", "NaN"];
    assert!(cases.contains(&case), "{case}");
    some_of("emulated cooperative matrices", 3, cases).contains(&case).then_some(EMULATED_COOP)
}

/// The cooperative-matrix kernel, where the device has it.
fn coop() -> Option<AttentionKernel> {
    let caps = gpu().caps;
    (caps.cooperative_matrix && caps.subgroups == Some((32, 32)))
        .then_some(AttentionKernel::PrefillCoop(FragmentOps::CooperativeMatrix))
}

#[test]
fn rows_among_themselves() {
    let mut rng = fastrand::Rng::with_seed(1);
    for heads in [heads(1, 1, 1), heads(3, 1, 5), heads(6, 2, 80), heads(7, 1, 33)] {
        for m in [1, 17] {
            Case::over_rows(m, heads, 0.3, &mut rng).check(AttentionKernel::Decode);
        }
    }
    Case::over_rows(70, heads(2, 1, 64), 4.0, &mut rng).check(AttentionKernel::Decode);
    Case::over_rows(33, heads(2, 1, 64), 0.0, &mut rng).check(AttentionKernel::Decode);
}

/// Every kernel is compiled, which takes its time: each type meets some heads.
const FEW: [(DType, [u32; 3]); 6] = [
    (DType::F32, [3, 1, 5]),
    (DType::F32, [2, 1, 64]),
    (DType::F16, [4, 2, 80]),
    (DType::F16, [4, 1, 128]),
    (DType::F16, [2, 1, 33]),
    (DType::Q8_0, [7, 1, 32]),
];

#[test]
fn decode_over_a_cache() {
    let mut rng = fastrand::Rng::with_seed(2);
    for (dtype, [n_heads, n_kv_heads, head_dim]) in FEW {
        let heads = heads(n_heads, n_kv_heads, head_dim);
        let cache = new_cache(dtype, 1, 700);
        for position in [0, 31, 32, 699] {
            Case::over_cache(cache, heads, &[position], None, &mut rng).check(AttentionKernel::Decode);
        }
        let cache = new_cache(dtype, 4, 96);
        Case::over_cache(cache, heads, &[5, 0, 77, 63], Some(&[2, 0, 3, 1]), &mut rng)
            .check(AttentionKernel::Decode);
    }
    // Parts that are longer than a block.
    let cache = new_cache(DType::F16, 1, 20_000);
    Case::over_cache(cache, heads(2, 1, 32), &[19_998], None, &mut rng).check(AttentionKernel::Decode);
}

#[test]
fn prefill_over_a_cache() {
    let mut rng = fastrand::Rng::with_seed(3);
    for (dtype, heads) in [
        (DType::F32, heads(2, 1, 32)),
        (DType::F16, heads(2, 1, 128)),
        (DType::Q8_0, heads(2, 2, 64)),
        (DType::F32, heads(1, 1, 256)),
    ] {
        let cache = new_cache(dtype, 1, 150);
        for (start, m) in [(0, 70), (85, 65)] {
            let positions: Vec<u32> = (start..start + m).collect();
            Case::over_cache(cache, heads, &positions, None, &mut rng).check(AttentionKernel::PrefillTiled);
        }
    }
}

#[test]
fn tiled_prefill_of_rows() {
    let mut rng = fastrand::Rng::with_seed(6);
    let positions: Vec<u32> = (0..90).map(|_| rng.u32(0..150)).collect();
    let sequences: Vec<u32> = (0..90).map(|i| if i < 70 { 1 } else { rng.u32(0..3) }).collect();
    let cache = new_cache(DType::F16, 3, 150);
    for (heads, memory) in
        [(heads(2, 1, 64), 16 << 10), (heads(4, 1, 128), 16 << 10), (heads(3, 1, 32), 32 << 10)]
    {
        let case = Case::over_cache(cache, heads, &positions, Some(&sequences), &mut rng);
        let caps = Caps { workgroup_memory: memory, ..gpu().caps };
        let (got, fault) = case.run(AttentionKernel::PrefillTiled, &caps);
        assert!(nmse(&got, &case.reference()) < 1e-10, "{heads:?}");
        assert_eq!(fault, [0; 4]);
    }
    let case = Case::over_rows(130, heads(2, 1, 256), 0.1, &mut rng);
    let (got, _) = case.run(AttentionKernel::PrefillTiled, &gpu().caps);
    assert!(nmse(&got, &case.reference()) < 1e-10);
    let odd = Attention { heads: heads(2, 1, 48), ..case.spec() };
    assert!(matches!(
        attention_by(AttentionKernel::PrefillTiled, &odd, &gpu().caps),
        Err(KernelError::Invalid { .. })
    ));
}

/// Head sizes for the cooperative-matrix kernel; when it is emulated only the first ones, because each
/// compiles for half a minute.
const COOP_HEADS: [(DType, [u32; 3]); 5] = [
    (DType::Q8_0, [2, 2, 32]),
    (DType::F16, [3, 1, 48]),
    (DType::F16, [4, 1, 128]),
    (DType::F16, [2, 1, 80]),
    (DType::Q8_0, [2, 1, 64]),
];

#[test]
fn coop_of_rows() {
    let mut rng = fastrand::Rng::with_seed(7);
    for (dtype, [n_heads, n_kv_heads, head_dim]) in COOP_HEADS {
        let cache = new_cache(dtype, 1, 400);
        for (start, m) in [(0, 130), (170, 33)] {
            let positions: Vec<u32> = (start..start + m).collect();
            let mut case =
                Case::over_cache(cache, heads(n_heads, n_kv_heads, head_dim), &positions, None, &mut rng);
            // Then queries of any size, and scores of another sign.
            for _ in 0..2 {
                let emulated = (head_dim < 64).then(|| emulated(&format!("heads of {head_dim}"))).flatten();
                for kind in emulated.into_iter().chain(coop()) {
                    case.check_with(kind, &gpu().caps);
                }
                case.q.iter_mut().for_each(|q| *q *= 1e36);
                case.scale *= -1e-36;
            }
        }
    }
    let odd = new_cache(DType::F32, 1, 300);
    for (cache, heads) in [(odd, heads(2, 1, 64)), (Cache { dtype: DType::F16, ..odd }, heads(2, 1, 72))] {
        let kv = KvInput::Cache { cache, sequences: false };
        let spec = Attention { m: 100, heads, scores: 1.0.into(), kv };
        assert!(matches!(attention_by(EMULATED_COOP, &spec, &gpu().caps), Err(KernelError::Invalid { .. })));
    }
}

#[test]
fn coop_of_several_sequences() {
    let mut rng = fastrand::Rng::with_seed(8);
    let positions: Vec<u32> = (0..90).map(|_| rng.u32(0..150)).collect();
    let sequences: Vec<u32> = (0..90).map(|i| if i < 70 { 1 } else { rng.u32(0..3) }).collect();
    let cache = new_cache(DType::F16, 3, 150);
    let case = Case::over_cache(cache, heads(2, 1, 16), &positions, Some(&sequences), &mut rng);
    for kind in emulated("several sequences").into_iter().chain(coop()) {
        case.check_with(kind, &gpu().caps);
    }
}

/// Weights follow scores that rise from block to block, slowly, at once, and to the last.
#[test]
fn coop_of_scores_that_rise() {
    let mut rng = fastrand::Rng::with_seed(9);
    let cache = new_cache(DType::F16, 1, 400);
    let positions: Vec<u32> = (170..203).collect();
    for rise in [0.02, 0.2, -0.2, 4.0] {
        let mut case = Case::over_cache(cache, heads(2, 1, 16), &positions, None, &mut rng);
        case.scale = 1.0;
        let (bytes, numbers) = &mut case.kv[0];
        for (row, (key, bytes)) in numbers.chunks_mut(16).zip(bytes.chunks_mut(32)).enumerate() {
            let page = case.pages.iter().position(|&page| page as usize == row / 128).unwrap_or(0);
            let position = page * 128 + row % 128;
            let value = half::f16::from_f64((f64::from(position as u32) * rise).clamp(-300.0, 300.0));
            key[0] = value.to_f64();
            bytes[..2].copy_from_slice(&value.to_le_bytes());
        }
        case.q.chunks_mut(16).for_each(|q| q[0] = 1.0);
        for kind in emulated("rising scores").into_iter().chain(coop()) {
            case.check_with(kind, &gpu().caps);
        }
    }
}

#[test]
fn rows_out_of_range_give_zeros_and_are_reported() {
    let mut rng = fastrand::Rng::with_seed(4);
    let cache = new_cache(DType::F16, 2, 40);
    let kinds = [(3usize, AttentionKernel::Decode), (75, AttentionKernel::PrefillTiled)];
    for (rows, kind) in kinds.into_iter().chain(emulated("out of range").map(|kind| (75, kind))) {
        let mut positions: Vec<u32> = (0..rows as u32).map(|i| i % 40).collect();
        let mut sequences = vec![1; rows];
        positions[1] = 128;
        let case = Case::over_cache(cache, heads(4, 2, 32), &positions, Some(&sequences), &mut rng);
        let (got, fault) = case.run(kind, &gpu().caps);
        assert_eq!(fault, [2, 1, 128, 128]);
        assert!(nmse(&got, &case.reference()) < allowed(kind));
        (positions[1], sequences[2]) = (0, u32::MAX);
        let case = Case::over_cache(cache, heads(4, 2, 32), &positions, Some(&sequences), &mut rng);
        let (got, fault) = case.run(kind, &gpu().caps);
        assert_eq!(fault, [3, 2, u32::MAX, 2]);
        assert!(nmse(&got, &case.reference()) < allowed(kind));
        // A page that is not in the pool, and one that a sequence does not have.
        for page in [3, NO_PAGE] {
            let (positions, sequences) = (vec![9; rows], vec![1; rows]);
            let mut case = Case::over_cache(cache, heads(4, 2, 32), &positions, Some(&sequences), &mut rng);
            case.pages[1] = page;
            let (_, fault) = case.run(kind, &gpu().caps);
            assert_eq!((fault[0], fault[2], fault[3]), (10, page, 3));
            // Nobody reads it.
            case.sequences.fill(0);
            case.check_with(kind, &gpu().caps);
        }
    }
}

#[test]
fn a_nan_goes_where_it_belongs() {
    let mut rng = fastrand::Rng::with_seed(5);
    let kinds =
        [(2u32, AttentionKernel::Decode, DType::F32), (80, AttentionKernel::PrefillTiled, DType::F32)];
    for (rows, kind, dtype) in kinds.into_iter().chain(emulated("NaN").map(|kind| (80, kind, DType::F16))) {
        let cache = new_cache(dtype, 1, 90);
        let key = dtype.bytes(32).unwrap();
        let positions: Vec<u32> = (3..3 + rows).collect();
        let mut case = Case::over_cache(cache, heads(4, 2, 32), &positions, None, &mut rng);
        // Beyond what any row sees.
        for (bytes, _) in &mut case.kv {
            for head in bytes.chunks_mut(128 * key) {
                head[(3 + rows as usize) * key..].fill(0xff);
            }
        }
        // A query of row 1.
        case.q[128 + 40] = f32::NAN;
        let variants = gpu().caps_variants();
        for caps in &variants[..if kind == EMULATED_COOP { 1 } else { 2 }] {
            let (got, _) = case.run(kind, caps);
            let nan: Vec<usize> = (0..got.len()).filter(|&i| got[i].is_nan()).collect();
            assert_eq!(nan, (160..192).collect::<Vec<_>>(), "{rows} rows");
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let caps = Caps { max_binding: 1 << 16, ..gpu().caps };
    let cache = new_cache(DType::F16, 4, 1024);
    let kv = KvInput::Cache { cache, sequences: true };
    let spec = Attention { m: 1, heads: heads(2, 1, 64), scores: 1.0.into(), kv };
    assert!(matches!(
        attention(&spec, &caps),
        Err(KernelError::TooLarge { bytes: 540_672, limit: 65_536, .. })
    ));
    let wrong = Attention { heads: heads(3, 2, 64), ..spec };
    assert!(matches!(attention(&wrong, &gpu().caps), Err(KernelError::Invalid { .. })));
    let wide = Attention { heads: heads(1, 1, 4099), kv: KvInput::Rows, ..spec };
    assert!(matches!(attention(&wide, &gpu().caps), Err(KernelError::Invalid { .. })));
    assert_eq!(attention(&Attention { m: 0, ..spec }, &gpu().caps).unwrap(), LaunchList::default());
}

#[test]
fn rows_and_heads_choose_the_kernel() {
    let cache = new_cache(DType::F16, 1, 4096);
    let kv = KvInput::Cache { cache, sequences: false };
    let spec = Attention { m: 1, heads: heads(32, 8, 128), scores: 1.0.into(), kv };
    let several = KvInput::Cache { cache, sequences: true };
    for (spec, kind) in [
        (spec, AttentionKernel::Decode),
        (Attention { m: 16, ..spec }, AttentionKernel::Decode),
        (Attention { m: 512, ..spec }, AttentionKernel::PrefillTiled),
        (Attention { m: 512, kv: several, ..spec }, AttentionKernel::PrefillTiled),
        (Attention { m: 128, kv: several, ..spec }, AttentionKernel::Decode),
        (Attention { m: 512, heads: heads(32, 8, 80), ..spec }, AttentionKernel::Decode),
    ] {
        assert_eq!(attention(&spec, &gpu().caps), attention_by(kind, &spec, &gpu().caps), "{spec:?}");
    }
    let caps = Caps {
        f16: true,
        cooperative_matrix: true,
        subgroups: Some((32, 32)),
        workgroup_memory: 48 << 10,
        ..gpu().caps
    };
    let wide = KvInput::Cache { cache: Cache { dtype: DType::F32, ..cache }, sequences: false };
    for (spec, caps, kind) in [
        (Attention { m: 512, ..spec }, caps, AttentionKernel::PrefillCoop(FragmentOps::CooperativeMatrix)),
        (
            Attention { m: 512, heads: heads(32, 8, 80), ..spec },
            caps,
            AttentionKernel::PrefillCoop(FragmentOps::CooperativeMatrix),
        ),
        (Attention { m: 512, kv: wide, ..spec }, caps, AttentionKernel::PrefillTiled),
        (Attention { m: 512, heads: heads(32, 8, 160), ..spec }, caps, AttentionKernel::PrefillTiled),
        (
            Attention { m: 512, ..spec },
            Caps { subgroups: Some((8, 32)), ..caps },
            AttentionKernel::PrefillTiled,
        ),
        (Attention { m: 512, ..spec }, Caps { f16: false, ..caps }, AttentionKernel::PrefillTiled),
        (
            Attention { m: 512, ..spec },
            Caps { workgroup_memory: 16 << 10, ..caps },
            AttentionKernel::PrefillTiled,
        ),
        (Attention { m: 16, ..spec }, caps, AttentionKernel::Decode),
    ] {
        assert_eq!(attention(&spec, &caps), attention_by(kind, &spec, &caps), "{spec:?}");
    }
}
