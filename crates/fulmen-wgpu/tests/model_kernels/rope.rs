use fulmen_core::{RopePairing, RopeSpec};
use fulmen_wgpu::kernels::{
    KernelError, LaunchList,
    rope::{Rope, rope},
};

use crate::common_rows::{draw, gpu, nmse};

/// Rotates the heads of one row in place.
pub(crate) fn rotate(
    x: &mut [f64],
    position: u32,
    factors: Option<&[f32]>,
    head_dim: usize,
    spec: &RopeSpec,
) {
    let n_rot = spec.n_rot as usize;
    for head in x.chunks_mut(head_dim) {
        for pair in 0..n_rot / 2 {
            let frequency = f64::from(spec.base).powf(-2.0 * pair as f64 / n_rot as f64);
            let factor = factors.map_or(1.0, |factors| f64::from(factors[pair]));
            let angle = f64::from(position) * f64::from(spec.freq_scale) * frequency / factor;
            let (i, j) = match spec.pairing {
                RopePairing::Interleaved => (2 * pair, 2 * pair + 1),
                RopePairing::NeoX => (pair, pair + n_rot / 2),
            };
            let (sin, cos) = angle.sin_cos();
            let (a, b, m) = (head[i], head[j], f64::from(spec.magnitude));
            head[i] = (a * cos - b * sin) * m;
            head[j] = (a * sin + b * cos) * m;
        }
    }
}

#[test]
fn heads_are_rotated_by_their_positions() {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut worst = 0f64;
    for pairing in [RopePairing::Interleaved, RopePairing::NeoX] {
        for (head_dim, n_rot) in
            [(1, 0), (2, 2), (6, 4), (33, 32), (64, 64), (80, 34), (128, 128), (256, 64), (300, 300)]
        {
            for (base, freq_scale, magnitude, factored) in [
                (10_000.0, 1.0, 1.0, false),
                (1e6, 0.25, 1.19, false),
                (500_000.0, 1.0, 1.0, true),
                (1e4, 8.0, 0.7, true),
            ] {
                let spec = RopeSpec { pairing, n_rot, base, freq_scale, magnitude };
                let pairs = n_rot as usize / 2;
                let mut factors: Vec<f32> = (0..pairs).map(|_| 0.05 + 30.0 * rng.f32() * rng.f32()).collect();
                factors.iter_mut().step_by(3).for_each(|factor| *factor = 1.0);
                let (m, n_heads) = (5usize, 3usize);
                let positions = [0u32, 1, 131_072, 1_000_003, rng.u32(0..40_000)];
                let x = draw(&mut rng, m * n_heads * head_dim as usize, -2.0, 2.0);
                let mut want: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
                for (row, &position) in want.chunks_mut(n_heads * head_dim as usize).zip(&positions) {
                    rotate(row, position, factored.then_some(&factors), head_dim as usize, &spec);
                }
                let spec =
                    Rope { m: m as u32, n_heads: n_heads as u32, head_dim, rope: spec, factors: factored };
                let plan = rope(&spec, &gpu().caps).unwrap();
                let inputs: [&[u8]; 3] = [
                    bytemuck::cast_slice(&x),
                    bytemuck::cast_slice(&positions),
                    bytemuck::cast_slice(&factors),
                ];
                let poison = vec![0xa5; x.len() * 4];
                for aliases in [&[][..], &[(0, 0)]] {
                    let after = gpu().run_aliased(&plan, &inputs, &[&poison], aliases);
                    let got: Vec<f32> = bytemuck::pod_collect_to_vec(&after.outputs[0][..poison.len()]);
                    let error = nmse(&got, &want);
                    worst = worst.max(error);
                    assert!(error < 1e-11, "{spec:?}: {error:e}");
                }
            }
        }
    }
    println!("at most {worst:e}");
}

#[test]
fn a_nan_spoils_its_pair_and_wrong_rotations_are_refused() {
    let spec = RopeSpec::new(RopePairing::NeoX, 8, 1e4);
    let mut x = vec![1.0f32; 16];
    x[9] = f32::NAN;
    let call = Rope { m: 1, n_heads: 2, head_dim: 8, rope: spec, factors: false };
    let got = gpu().run_f32(&rope(&call, &gpu().caps).unwrap(), &[&x, &[f32::from_bits(3)]], 16);
    let nan: Vec<usize> = (0..16).filter(|&i| got[i].is_nan()).collect();
    assert_eq!(nan, [9, 13]);
    for wrong in
        [RopeSpec { n_rot: 10, ..spec }, RopeSpec { n_rot: 3, ..spec }, RopeSpec { base: f32::NAN, ..spec }]
    {
        let refused = rope(&Rope { rope: wrong, ..call }, &gpu().caps);
        assert!(matches!(refused, Err(KernelError::Invalid { .. })), "{wrong:?}");
    }
    assert_eq!(rope(&Rope { m: 0, ..call }, &gpu().caps).unwrap(), LaunchList::default());
}
