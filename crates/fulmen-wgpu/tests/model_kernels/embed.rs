use fulmen_core::{DType, quant};
use fulmen_wgpu::{
    kernel::Caps,
    kernels::{
        KernelError, LaunchList,
        embed::{Embed, embed},
        qmatmul::QuantWeight,
    },
};

use crate::common_rows::{draw, gpu};

const TYPES: [DType; 10] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q8_0,
    DType::Q4_K,
    DType::Q5_K,
    DType::Q6_K,
    DType::MXFP4,
];

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytemuck::pod_collect_to_vec(bytes)
}

/// A table of random values: as it lies in a file, as the device has it, and its values.
fn table(dtype: DType, rows: u32, width: u32, rng: &mut fastrand::Rng) -> (Vec<u8>, Vec<f32>) {
    let elements = rows as usize * width as usize;
    let values = draw(rng, elements, -2.0, 2.0);
    let mut bytes = vec![0; dtype.bytes(elements).unwrap()];
    quant::quantize(dtype, &values, &mut bytes).unwrap();
    let values = quant::dequantize_to_vec(dtype, &bytes, elements).unwrap();
    if dtype.block_len() > 1 {
        bytes = QuantWeight { dtype, n: rows, k: width }.repack(&bytes).unwrap();
    }
    (bytes, values)
}

#[test]
fn rows_of_every_type_arrive() {
    let mut rng = fastrand::Rng::with_seed(1);
    for caps in gpu().caps_variants() {
        for dtype in TYPES {
            let widths: &[u32] = match dtype.block_len() {
                1 => &[1, 3, 8, 63, 576],
                32 => &[32, 64, 160, 576],
                _ => &[256, 512, 2304],
            };
            for &width in widths {
                let rows = 21;
                let (bytes, values) = table(dtype, rows, width, &mut rng);
                for m in [1usize, 2, 7] {
                    let mut tokens: Vec<u32> = (0..m).map(|_| rng.u32(0..rows)).collect();
                    tokens[0] = rows - 1;
                    let want: Vec<f32> = tokens
                        .iter()
                        .flat_map(|&token| &values[token as usize * width as usize..][..width as usize])
                        .copied()
                        .collect();
                    let spec = Embed { dtype, rows, width, part: 0..rows, slice: 0..rows, m: m as u32 };
                    let plan = embed(&spec, &caps).unwrap();
                    let poison = vec![0xa5; want.len() * 4];
                    let after =
                        gpu().run_on(&plan, &[&bytes, bytemuck::cast_slice(&tokens)], &[&poison, &[0; 16]]);
                    let got = floats(&after.outputs[0]);
                    let off = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                    assert!(off <= 1e-6 && got.iter().all(|x| x.is_finite()), "{dtype:?} {width} {m}: {off}");
                    assert_eq!(after.outputs[1], [0; 16]);
                }
            }
        }
    }
}

#[test]
fn slices_write_their_rows_and_wrong_tokens_are_reported_once() {
    let mut rng = fastrand::Rng::with_seed(2);
    let (rows, width) = (10, 64);
    for dtype in [DType::F32, DType::F16, DType::Q8_0] {
        let (bytes, values) = table(dtype, rows, width, &mut rng);
        let tokens = [9u32, 3, 10, 4, 0, u32::MAX];
        let row = bytes.len() / rows as usize;
        let mut out = vec![0xa5u8; tokens.len() * width as usize * 4];
        let mut fault = vec![0u8; 16];
        for slice in [0..4, 4..10] {
            let spec =
                Embed { dtype, rows, width, part: 0..rows, slice: slice.clone(), m: tokens.len() as u32 };
            let plan = embed(&spec, &gpu().caps).unwrap();
            let part = &bytes[slice.start as usize * row..slice.end as usize * row];
            let mut after = gpu().run_on(&plan, &[part, bytemuck::cast_slice(&tokens)], &[&out, &fault]);
            fault = after.outputs.pop().unwrap();
            out = after.outputs.pop().unwrap();
            if slice.start == 0 {
                let words: Vec<u32> = bytemuck::pod_collect_to_vec(&fault);
                assert!(matches!(words[..], [1, 2, 10, 10] | [1, 5, u32::MAX, 10]), "{words:?}");
                fault.fill(0);
            } else {
                assert_eq!(fault, [0; 16]);
            }
        }
        for (i, (&token, got)) in tokens.iter().zip(out.chunks(width as usize * 4)).enumerate() {
            if token < rows {
                let want = &values[token as usize * width as usize..][..width as usize];
                assert!(floats(got).iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-6), "{dtype:?} row {i}");
            } else {
                assert!(got.iter().all(|&byte| byte == 0xa5), "{dtype:?} row {i}");
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let caps = gpu().caps;
    let spec = Embed { dtype: DType::F32, rows: 100, width: 64, part: 0..100, slice: 0..100, m: 2 };
    let small = Caps { max_binding: 4096, ..caps };
    assert!(matches!(embed(&spec, &small), Err(KernelError::TooLarge { limit: 4096, .. })));
    assert!(embed(&Embed { slice: 0..16, ..spec.clone() }, &small).is_ok());
    assert!(matches!(
        embed(&Embed { slice: 5..101, ..spec.clone() }, &caps),
        Err(KernelError::Invalid { .. })
    ));
    assert!(matches!(
        embed(&Embed { dtype: DType::Q8_K, width: 256, ..spec.clone() }, &caps),
        Err(KernelError::Invalid { .. })
    ));
    assert_eq!(embed(&Embed { m: 0, ..spec }, &caps).unwrap(), LaunchList::default());
}
