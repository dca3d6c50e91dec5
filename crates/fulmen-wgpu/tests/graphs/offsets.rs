//! Operands that begin anywhere: between the offsets that a binding can have, at an odd byte for copies.

use fulmen_core::{
    BinaryCall, CopyCall, DType, KernelDispatch, MulMatCall, Projection, RmsNormCall, UnaryCall, WeightArg,
};

use crate::{dispatcher, get, put};

fn ramp(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i * 13 % 29) as f32 - 14.0).collect()
}

#[test]
fn rows_in_the_middle_of_a_matrix_are_operands_like_any_other() {
    let mut wgpu = dispatcher();
    // All in one allocation, as the tensors of a graph are.
    let values = ramp(64);
    for (a, b, out, n) in [(1, 20, 41, 7), (0, 9, 33, 5), (3, 3, 30, 11), (2, 19, 2, 9), (5, 17, 17, 6)] {
        let ptr = put(&mut wgpu, &values);
        let at = |i: usize| ptr + 4 * i as u64;
        let call = BinaryCall { a: at(a), b: at(b), output: at(out), n_elements: n };
        assert!(wgpu.dispatch_add(&call).unwrap() > 0);
        let mut expected = values.clone();
        (0..n).for_each(|i| expected[out + i] = values[a + i] + values[b + i]);
        assert_eq!(get::<f32>(&mut wgpu, ptr, 64), expected, "{a} {b} {out} {n}");
    }
    let ptr = put(&mut wgpu, &values);
    let (x, gamma, out) = (ptr + 4, ptr + 4 * 21, ptr + 4 * 37);
    let norm = RmsNormCall { input: x, gamma, output: out, width: 5, rows: 3, epsilon: 1e-6 };
    wgpu.dispatch_rms_norm(&norm).unwrap();
    let got: Vec<f32> = get(&mut wgpu, ptr, 64);
    for row in 0..3 {
        let x = &values[1 + 5 * row..][..5];
        let factor = 1.0 / (x.iter().map(|x| x * x).sum::<f32>() / 5.0 + 1e-6).sqrt();
        for i in 0..5 {
            let expected = x[i] * factor * values[21 + i];
            assert!((got[37 + 5 * row + i] - expected).abs() < 1e-4, "{row} {i}");
        }
    }
    assert_eq!((&got[..37], &got[52..]), (&values[..37], &values[52..]));
    // In place.
    let silu = UnaryCall { input: ptr + 12, output: ptr + 12, n_elements: 9, scalar: 1.0 };
    wgpu.dispatch_silu(&silu).unwrap();
    let after: Vec<f32> = get(&mut wgpu, ptr, 64);
    assert!((3..12).all(|i| (after[i] - got[i] / (1.0 + (-got[i]).exp())).abs() < 1e-4));
    assert_eq!((&after[..3], &after[12..]), (&got[..3], &got[12..]));
}

#[test]
fn matmuls_take_rows_from_the_middle_and_work_in_place() {
    let mut wgpu = dispatcher();
    let (k, n) = (6usize, 5usize);
    let (weight, values) = (ramp(n * k), ramp(80));
    let w = put(&mut wgpu, &[&[0.0; 3], &*weight].concat());
    let ptr = put(&mut wgpu, &values);
    let at = |i: usize| ptr + 4 * i as u64;
    // Row 1 of a matrix of two rows, with a bias, onto its residual.
    let part = Projection {
        weight: WeightArg { ptr: w + 12, dtype: DType::F32, rows: n as u32 },
        bias: Some(at(61)),
        output: at(31),
    };
    let call = MulMatCall {
        input: at(7),
        parts: vec![part],
        residual: Some(at(31)),
        m: 2,
        k: k as u32,
        batch_invariant: false,
    };
    wgpu.dispatch_mul_mat(&call).unwrap();
    let mut expected = values.clone();
    for (row, column) in (0..2).flat_map(|row| (0..n).map(move |column| (row, column))) {
        let dot: f32 = (0..k).map(|i| values[7 + row * k + i] * weight[column * k + i]).sum();
        expected[31 + row * n + column] += dot + values[61 + column];
    }
    assert_eq!(get::<f32>(&mut wgpu, ptr, 80), expected);
}

#[test]
fn copies_of_any_bytes_leave_their_neighbours_alone() {
    let mut wgpu = dispatcher();
    let values: Vec<u8> = (0..=255).collect();
    let (from, within) = (put(&mut wgpu, &values), put(&mut wgpu, &values));
    for (source, target, bytes) in
        [(0, 0, 1), (1, 2, 1), (3, 1, 2), (0, 7, 9), (5, 0, 64), (17, 33, 100), (255, 255, 1), (2, 130, 125)]
    {
        let to = put(&mut wgpu, &[0xaau8; 256]);
        let copied = wgpu.dispatch_copy(&CopyCall { input: from + source, output: to + target, bytes });
        assert_eq!(copied.unwrap(), 1);
        let mut expected = vec![0xaa; 256];
        let (s, t) = (source as usize, target as usize);
        expected[t..t + bytes].copy_from_slice(&values[s..s + bytes]);
        assert_eq!(get::<u8>(&mut wgpu, to, 256), expected, "{source} {target} {bytes}");
    }
    // Within one buffer, too, and close by.
    let mut expected = values.clone();
    for (source, target, bytes) in [(3, 101, 50), (0, 50, 50), (200, 190, 10), (9, 8, 1)] {
        let call = CopyCall { input: within + source, output: within + target, bytes };
        wgpu.dispatch_copy(&call).unwrap();
        let source = source as usize;
        expected.copy_within(source..source + bytes, target as usize);
        assert_eq!(get::<u8>(&mut wgpu, within, 256), expected, "{call:?}");
    }
}
