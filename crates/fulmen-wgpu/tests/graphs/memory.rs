//! Memory: transfers to any byte, weights in parts, and what happens when there is none left.

use std::sync::Arc;

use fulmen_core::{
    BackendError, DType, DeviceMemory, EmbedCall, KernelDispatch, MulMatCall, Projection, SharedBytes,
    WeightArg, quant,
};
use fulmen_wgpu::{DeviceOptions, GpuError};

use crate::{dispatcher, get, put, with};

#[test]
fn bytes_come_back_as_they_went() {
    let mut wgpu = dispatcher();
    for bytes in [0, 1, 3, 4096, (1 << 20) + 13] {
        let data: Vec<u8> = (0..bytes).map(|i| (i as u32).wrapping_mul(2_654_435_761) as u8 >> 3).collect();
        let ptr = wgpu.alloc(bytes).unwrap();
        assert!(ptr > 0 && ptr.is_multiple_of(256));
        wgpu.write(ptr, &data).unwrap();
        let mut back = vec![0; bytes];
        wgpu.read(ptr, &mut back).unwrap();
        assert!(back == data, "{bytes}");
        // A part in the middle, written and read.
        let at = bytes as u64 / 2;
        let part: Vec<u8> = data[bytes / 2..][..bytes / 3].iter().map(|byte| !byte).collect();
        wgpu.write(ptr + at, &part).unwrap();
        wgpu.read(ptr, &mut back).unwrap();
        let mut expected = data.clone();
        expected[bytes / 2..][..bytes / 3].copy_from_slice(&part);
        assert!(back == expected, "{bytes}");
        assert!(bytes == 0 || wgpu.read(ptr + 1, &mut back).is_err());
        wgpu.free(ptr).unwrap();
        assert!(wgpu.free(ptr).is_err());
    }
    assert_eq!(wgpu.memory_bytes(), 0);
    let ptr = wgpu.import(Arc::new(vec![5u8; 7])).unwrap();
    assert!(matches!(wgpu.write(ptr, &[1]), Err(BackendError::ReadOnly { .. })));
    assert_eq!(get::<u8>(&mut wgpu, ptr, 7), [5; 7]);
}

#[test]
fn more_memory_than_there_is_is_an_error_that_says_how_much_there_is() {
    let mut wgpu = dispatcher();
    match wgpu.alloc(1 << 46) {
        Err(BackendError::OutOfMemory { needed, available: Some(available) }) => {
            assert!(needed == 1 << 46 && available < needed, "{needed} {available}");
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(wgpu.alloc(usize::MAX), Err(BackendError::OutOfMemory { .. })));
    // A buffer has a limit of its own.
    let mut small = with(DeviceOptions { max_buffer: Some(1 << 20), ..DeviceOptions::default() });
    let error = small.alloc((1 << 20) + 4).unwrap_err();
    let source = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<GpuError>());
    assert!(
        matches!(source, Some(GpuError::TooLarge { needed: 1_048_580, limit: 1_048_576, .. })),
        "{error:?}"
    );
    assert!(small.alloc(1 << 20).is_ok());
}

/// A product and an embedding by a weight that no buffer holds, and by one that no binding holds.
#[test]
fn weights_above_a_buffer_or_a_binding_are_split() {
    let (n, k, m) = (700u32, 256u32, 3u32);
    let limits = [(Some(1 << 16), Some(1 << 16)), (Some(1 << 16), None)];
    let values: Vec<f32> = (0..n * k).map(|i| ((i * 29 % 113) as f32 - 56.0) / 31.0).collect();
    let x: Vec<f32> = (0..m * k).map(|i| ((i * 17 % 51) as f32 - 25.0) / 9.0).collect();
    for dtype in [DType::F32, DType::F16, DType::Q4_K, DType::Q8_0, DType::Q3_K, DType::Q5_1] {
        let bytes = quant::quantize_to_vec(dtype, &values).unwrap();
        let exact = quant::dequantize_to_vec(dtype, &bytes, values.len()).unwrap();
        for (max_binding, max_buffer) in limits {
            let mut wgpu = with(DeviceOptions { max_binding, max_buffer, ..DeviceOptions::default() });
            let host = Arc::new(bytes.clone());
            let weight = wgpu.import_weight(Arc::clone(&host) as SharedBytes, dtype, n, k).unwrap();
            assert_eq!(Arc::strong_count(&host), 1, "the device keeps no bytes of the host");
            // A weight that was repacked is not read back; one stored as it is gives the bytes.
            let mut read = vec![0; 1001];
            match wgpu.read(weight + 7, &mut read) {
                Ok(()) => assert!(read == bytes[7..1008]),
                Err(error) => assert!(matches!(error, BackendError::Unsupported { .. }), "{error}"),
            }
            let weight = WeightArg { ptr: weight, dtype, rows: n };
            let (input, output) = (put(&mut wgpu, &x), put(&mut wgpu, &vec![f32::NAN; (m * n) as usize]));
            let parts = vec![Projection { weight, bias: None, output }];
            wgpu.dispatch_mul_mat(&MulMatCall { input, parts, residual: None, m, k, batch_invariant: false })
                .unwrap();
            let got: Vec<f32> = get(&mut wgpu, output, (m * n) as usize);
            let (mut error, mut size) = (0f64, 0f64);
            for (at, got) in got.iter().enumerate() {
                let (row, column) = (at / n as usize, at % n as usize);
                let pairs = x[row * k as usize..][..k as usize].iter().zip(&exact[column * k as usize..]);
                let dot: f64 = pairs.map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
                error += (f64::from(*got) - dot).powi(2);
                size += dot * dot;
            }
            assert!(error / size < 1e-4, "{dtype}: {:e}", error / size);
            let tokens = put(&mut wgpu, &[n - 1, 0, n / 2]);
            let output = put(&mut wgpu, &vec![f32::NAN; (m * k) as usize]);
            wgpu.dispatch_embed(&EmbedCall { table: weight, part: None, tokens, output, m, width: k })
                .unwrap();
            let rows: Vec<f32> = get(&mut wgpu, output, (m * k) as usize);
            for (row, token) in [n - 1, 0, n / 2].into_iter().enumerate() {
                let expected = &exact[(token * k) as usize..][..k as usize];
                let got = &rows[row * k as usize..][..k as usize];
                let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-5 * b.abs().max(1e-3);
                assert!(got.iter().zip(expected).all(close), "{dtype} {token}");
            }
        }
    }
}
