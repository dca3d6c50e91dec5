use fulmen_core::{DType, Heads, KV_PAGE, NO_PAGE, RopePairing, RopeSpec, pages_of, q8_0_from_pages, quant};
use fulmen_wgpu::{
    kernel::Caps,
    kernels::{
        KernelError, LaunchList,
        kv::{Cache, KvStore, RopeStore, kv_store, rope_store},
    },
};

use super::rope::rotate;
use crate::common_rows::{draw, gpu};

fn heads(n_heads: u32, n_kv_heads: u32, head_dim: u32) -> Heads {
    Heads { n_heads, n_kv_heads, head_dim }
}

struct Case {
    m: usize,
    heads: Heads,
    cache: Cache,
    positions: Vec<u32>,
    sequences: Option<Vec<u32>>,
    /// The pages of each sequence.
    pages: Vec<u32>,
}

impl Case {
    fn spec(&self) -> KvStore {
        let Self { m, heads, cache, .. } = *self;
        KvStore { m: m as u32, heads, cache, sequences: self.sequences.is_some() }
    }

    fn row_bytes(&self) -> usize {
        self.cache.dtype.bytes(self.heads.head_dim as usize).unwrap()
    }

    fn cache_bytes(&self) -> usize {
        (self.cache.n_pages * self.heads.n_kv_heads * KV_PAGE) as usize * self.row_bytes()
    }

    /// The cache after the rows were stored, as what each head should hold; `None` where nothing was written.
    fn stored(&self, x: &[f64]) -> Vec<Option<Vec<f64>>> {
        let (head_dim, n_kv) = (self.heads.head_dim as usize, self.heads.n_kv_heads as usize);
        let (capacity, n_seqs) = (self.cache.capacity() as usize, self.cache.n_seqs as usize);
        let mut cache = vec![None; self.cache.n_pages as usize * n_kv * 128];
        for (row, x) in x.chunks(n_kv * head_dim).enumerate() {
            let position = self.positions[row] as usize;
            let sequence = self.sequences.as_ref().map_or(0, |s| s[row]) as usize;
            if position >= capacity || sequence >= n_seqs {
                continue;
            }
            let page = self.pages[sequence * self.cache.seq_pages as usize + position / 128];
            if page >= self.cache.n_pages {
                continue;
            }
            for (head, x) in x.chunks(head_dim).enumerate() {
                cache[(page as usize * n_kv + head) * 128 + position % 128] = Some(x.to_vec());
            }
        }
        cache
    }

    /// Compares a cache with what should be in it.
    fn check(&self, got: &[u8], x: &[f64], what: &str) {
        let blocks;
        let got = match self.cache.dtype {
            DType::Q8_0 => {
                blocks = q8_0_from_pages(self.heads.head_dim as usize, &got[..self.cache_bytes()]);
                &blocks[..]
            }
            _ => got,
        };
        for (at, (got, want)) in got.chunks(self.row_bytes()).zip(self.stored(x)).enumerate() {
            let Some(want) = want else {
                assert!(got.iter().all(|&byte| byte == 0x3c), "{what} {:?}: place {at}", self.spec());
                continue;
            };
            let largest = want.iter().fold(0f64, |a, x| a.max(x.abs()));
            let values = quant::dequantize_to_vec(self.cache.dtype, got, want.len()).unwrap();
            for (got, want) in values.iter().zip(&want) {
                let off = (f64::from(*got) - want).abs();
                let allowed = match self.cache.dtype {
                    DType::F32 => 1e-5 * largest,
                    DType::F16 => 5e-4 * want.abs() + 1e-5 * largest,
                    _ => 0.51 * largest / 127.0 + 1e-4 * largest,
                };
                assert!(off <= allowed, "{what} {:?}: place {at}: {got} {want}", self.spec());
            }
        }
    }
}

fn cases(rng: &mut fastrand::Rng) -> Vec<Case> {
    let (mut cases, mut shuffle) = (Vec::new(), rng.fork());
    for dtype in [DType::F32, DType::F16, DType::Q8_0] {
        for heads in [
            heads(4, 2, 64),
            heads(3, 3, 32),
            heads(2, 1, 96),
            heads(5, 5, 33),
            heads(3, 1, 5),
            heads(8, 2, 128),
        ] {
            if dtype == DType::Q8_0 && !heads.head_dim.is_multiple_of(32) {
                continue;
            }
            let mut case = |positions: Vec<u32>, sequences: Option<Vec<u32>>, n_seqs, capacity| {
                let seq_pages = pages_of(capacity);
                let n_pages = n_seqs * seq_pages + 1;
                let cache = Cache { dtype, n_pages, n_seqs, seq_pages };
                let mut pages: Vec<u32> = (0..n_pages).collect();
                shuffle.shuffle(&mut pages);
                pages.truncate(n_pages as usize - 1);
                cases.push(Case { m: positions.len(), heads, cache, positions, sequences, pages });
            };
            case(vec![0], None, 1, 1);
            case(vec![16], None, 1, 17);
            case(vec![7, 0, 12], Some(vec![2, 0, 1]), 3, 13);
            // One place twice, and two rows without a place.
            case(vec![3, 4, 3, 128, 1], Some(vec![0, 1, 0, 0, 2]), 2, 9);
            case((100..140).map(|i| i % 137).collect(), None, 1, 140);
            case(
                (0..40).map(|_| rng.u32(125..131)).collect(),
                Some((0..40).map(|_| rng.u32(0..4)).collect()),
                3,
                128,
            );
        }
    }
    cases
}

fn fault_is_told(case: &Case, record: &[u8]) {
    let words: Vec<u32> = bytemuck::pod_collect_to_vec(record);
    let capacity = case.cache.capacity();
    let wrong = (0..case.m).any(|r| {
        case.positions[r] >= capacity || case.sequences.as_ref().is_some_and(|s| s[r] >= case.cache.n_seqs)
    });
    assert_eq!(words[0] != 0, wrong, "{words:?}");
    if wrong {
        let row = words[1] as usize;
        let (value, limit) = match words[0] {
            2 => (case.positions[row], capacity),
            3 => (case.sequences.as_ref().unwrap()[row], case.cache.n_seqs),
            code => panic!("{code}"),
        };
        assert_eq!((words[2], words[3]), (value, limit));
        assert!(value >= limit);
    }
}

#[test]
fn rows_are_stored_in_their_places() {
    let mut rng = fastrand::Rng::with_seed(1);
    for case in cases(&mut rng) {
        let width = case.heads.kv_width() as usize;
        let (k, v) = (draw(&mut rng, case.m * width, -3.0, 3.0), draw(&mut rng, case.m * width, -1.0, 1.0));
        let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        let before = vec![0x3c; case.cache_bytes()];
        let none = vec![0; case.m];
        let sequences = case.sequences.as_ref().unwrap_or(&none);
        let inputs: [&[u8]; 5] = [
            bytemuck::cast_slice(&k),
            bytemuck::cast_slice(&v),
            bytemuck::cast_slice(&case.positions),
            bytemuck::cast_slice(sequences),
            bytemuck::cast_slice(&case.pages),
        ];
        let plan = kv_store(&case.spec(), &gpu().caps).unwrap();
        let after = gpu().run_on(&plan, &inputs, &[&before, &before, &[0; 16]]);
        case.check(&after.outputs[0], &wide(&k), "k");
        case.check(&after.outputs[1], &wide(&v), "v");
        fault_is_told(&case, &after.outputs[2]);
    }
}

#[test]
fn a_page_that_is_not_in_the_pool_is_reported_and_not_written() {
    let mut rng = fastrand::Rng::with_seed(3);
    for (m, page) in [(2, 3), (40, NO_PAGE)] {
        let cache = Cache { dtype: DType::F16, n_pages: 3, n_seqs: 1, seq_pages: 2 };
        // The second page of the sequence, at the rows from 128 on.
        let positions: Vec<u32> = (129 - m..129).collect();
        let (heads, pages) = (heads(2, 1, 64), vec![2, page]);
        let case = Case { m: m as usize, heads, cache, positions, sequences: None, pages };
        let x = draw(&mut rng, case.m * 64, -3.0, 3.0);
        let bytes: &[u8] = bytemuck::cast_slice(&x);
        let inputs =
            [bytes, bytes, bytemuck::cast_slice(&case.positions), &[], bytemuck::cast_slice(&case.pages)];
        let before = vec![0x3c; case.cache_bytes()];
        let plan = kv_store(&case.spec(), &gpu().caps).unwrap();
        let after = gpu().run_on(&plan, &inputs, &[&before, &before, &[0; 16]]);
        let wide: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
        case.check(&after.outputs[0], &wide, "k");
        let fault: Vec<u32> = bytemuck::pod_collect_to_vec(&after.outputs[2]);
        assert_eq!(fault, [10, m - 1, page, 3]);
    }
}

#[test]
fn f16_values_are_rounded_to_nearest() {
    let mut x: Vec<f32> = vec![
        0.0,
        -0.0,
        1e-8,
        5.960_464_5e-8,
        2.98e-8,
        6.1e-5,
        1.0,
        65504.0,
        65519.0,
        65520.0,
        -1e30,
        f32::INFINITY,
    ];
    x.extend((0..500).map(|i| (1.0 + i as f32 / 65536.0) * 2f32.powi(i % 40 - 26)));
    let n = x.len() as u32;
    let cache = Cache { dtype: DType::F16, n_pages: 1, n_seqs: 1, seq_pages: 1 };
    let spec = KvStore { m: 1, heads: heads(1, 1, n), cache, sequences: false };
    let plan = kv_store(&spec, &gpu().caps).unwrap();
    let bytes: &[u8] = bytemuck::cast_slice(&x);
    let before = vec![0xa5; 128 * x.len() * 2];
    let inputs = [bytes, bytes, &[0; 4], &[], &[0; 4]];
    let after = gpu().run_on(&plan, &inputs, &[&before, &before, &[0; 16]]);
    let got: Vec<u16> = bytemuck::pod_collect_to_vec(&after.outputs[1]);
    for (x, got) in x.iter().zip(got) {
        assert_eq!(got, half::f16::from_f32(*x).to_bits(), "{x:e}");
    }
}

#[test]
fn queries_and_keys_are_normed_and_rotated() {
    let mut rng = fastrand::Rng::with_seed(2);
    let few = Caps { max_storage_buffers: 8, ..gpu().caps };
    // Every kernel is compiled, which takes its time.
    for (number, case) in
        cases(&mut rng).into_iter().enumerate().filter(|(number, _)| number % 4 == 2 || *number < 4)
    {
        let Heads { n_heads, n_kv_heads, head_dim } = case.heads;
        let dim = head_dim as usize;
        let pairing = if number % 2 == 0 { RopePairing::NeoX } else { RopePairing::Interleaved };
        let n_rot = head_dim / 2 * 2 - if number % 3 == 0 && head_dim > 32 { 4 } else { 0 };
        let rope = RopeSpec { pairing, n_rot, base: 1e5, freq_scale: 0.5, magnitude: 1.1 };
        let (q_norm, k_norm, factored) = (number & 1 == 0, number & 2 == 0, number & 4 == 0);
        let epsilon = 1e-5f32;
        let q = draw(&mut rng, case.m * n_heads as usize * dim, -3.0, 3.0);
        let k = draw(&mut rng, case.m * n_kv_heads as usize * dim, -3.0, 3.0);
        let v = draw(&mut rng, case.m * n_kv_heads as usize * dim, -1.0, 1.0);
        let gammas = [draw(&mut rng, dim, 0.5, 1.5), draw(&mut rng, dim, 0.5, 1.5)];
        let factors = draw(&mut rng, n_rot as usize / 2 + 1, 1.0, 8.0);
        let keep_queries = |x: &[f32], gamma: Option<&[f32]>| -> Vec<f64> {
            let mut out: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
            if let Some(gamma) = gamma {
                for head in out.chunks_mut(dim) {
                    let square = head.iter().map(|x| x * x).sum::<f64>() / dim as f64;
                    let factor = 1.0 / (square + f64::from(epsilon)).sqrt();
                    head.iter_mut().zip(gamma).for_each(|(x, g)| *x *= factor * f64::from(*g));
                }
            }
            let width = out.len() / case.m;
            for (row, &position) in out.chunks_mut(width).zip(&case.positions) {
                rotate(row, position, factored.then_some(&factors), dim, &rope);
            }
            out
        };
        let want_q = keep_queries(&q, q_norm.then_some(&gammas[0]));
        let want_k = keep_queries(&k, k_norm.then_some(&gammas[1]));
        let want_v: Vec<f64> = v.iter().map(|&x| f64::from(x)).collect();
        let spec = RopeStore { store: case.spec(), rope, factors: factored, q_norm, k_norm, epsilon };
        let none = vec![0; case.m];
        let sequences = case.sequences.as_ref().unwrap_or(&none);
        let inputs: [&[u8]; 9] = [
            bytemuck::cast_slice(&q),
            bytemuck::cast_slice(&k),
            bytemuck::cast_slice(&v),
            bytemuck::cast_slice(&case.positions),
            bytemuck::cast_slice(sequences),
            bytemuck::cast_slice(&gammas[0]),
            bytemuck::cast_slice(&gammas[1]),
            bytemuck::cast_slice(&factors),
            bytemuck::cast_slice(&case.pages),
        ];
        let before = vec![0x3c; case.cache_bytes()];
        let poison = vec![0xa5; q.len() * 4];
        let [own, plain] = gpu().caps_variants();
        for (caps, aliases) in [(own, &[][..]), (plain, &[(0, 0)]), (few, &[(0, 0)])] {
            let plan = rope_store(&spec, &caps).unwrap();
            assert!(plan.launches.iter().all(|s| s.bindings.len() <= caps.max_storage_buffers as usize));
            let after = gpu().run_aliased(&plan, &inputs, &[&poison, &before, &before, &[0; 16]], aliases);
            case.check(&after.outputs[1], &want_k, "k");
            case.check(&after.outputs[2], &want_v, "v");
            fault_is_told(&case, &after.outputs[3]);
            let got: Vec<f32> = bytemuck::pod_collect_to_vec(&after.outputs[0][..poison.len()]);
            let width = n_heads as usize * dim;
            for (row, (got, want)) in got.chunks(width).zip(want_q.chunks(width)).enumerate() {
                let placed =
                    case.positions[row] < case.cache.capacity() && sequences[row] < case.cache.n_seqs;
                if !placed {
                    let kept: &[f32] = if aliases.is_empty() {
                        &vec![f32::from_ne_bytes([0xa5; 4]); width]
                    } else {
                        &q[row * width..][..width]
                    };
                    assert_eq!(got, kept);
                    continue;
                }
                assert!(crate::common_rows::nmse(got, want) < 1e-11, "{spec:?} row {row}");
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let caps = Caps { max_binding: 1 << 16, ..gpu().caps };
    let cache = Cache { dtype: DType::F16, n_pages: 32, n_seqs: 4, seq_pages: 8 };
    let spec = KvStore { m: 1, heads: heads(2, 1, 64), cache, sequences: true };
    let refused = kv_store(&spec, &caps);
    assert!(
        matches!(refused, Err(KernelError::TooLarge { bytes: 524_288, limit: 65_536, .. })),
        "{refused:?}"
    );
    let blocks = Cache { dtype: DType::Q8_0, ..cache };
    let wrong = KvStore { heads: heads(2, 1, 48), cache: blocks, ..spec };
    assert!(matches!(kv_store(&wrong, &gpu().caps), Err(KernelError::Invalid { .. })));
    let wrong = KvStore { heads: heads(3, 2, 64), ..spec };
    assert!(matches!(kv_store(&wrong, &gpu().caps), Err(KernelError::Invalid { .. })));
    assert_eq!(kv_store(&KvStore { m: 0, ..spec }, &gpu().caps).unwrap(), LaunchList::default());
}
