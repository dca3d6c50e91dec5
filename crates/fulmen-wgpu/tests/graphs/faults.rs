//! Numbers in device memory that are out of range: an error that names row and number, and a device
//! that goes on.

use fulmen_core::{DType, EmbedCall, Heads, KernelDispatch, KvCache, KvStoreCall, NO_PAGE, WeightArg};

use crate::{dispatcher, get, put};

#[test]
fn a_token_that_the_table_does_not_have() {
    let mut wgpu = dispatcher();
    let (table, tokens) = (put(&mut wgpu, &[1f32; 8 * 4]), put(&mut wgpu, &[3u32, 8, 0]));
    let output = put(&mut wgpu, &[7f32; 3 * 4]);
    let table = WeightArg { ptr: table, dtype: DType::F32, rows: 8 };
    wgpu.dispatch_embed(&EmbedCall { table, part: None, tokens, output, m: 3, width: 4 }).unwrap();
    let error = wgpu.synchronize().unwrap_err().to_string();
    assert_eq!(error, "the token of row 1 is 8, but there are only 8");
    wgpu.synchronize().expect("it is reported once");
    // The other rows are right, and nothing was written for this one.
    assert_eq!(get::<f32>(&mut wgpu, output, 12), [[1f32; 4], [7.0; 4], [1.0; 4]].concat());
}

#[test]
fn a_position_that_the_cache_does_not_have_is_reported_by_a_read() {
    let mut wgpu = dispatcher();
    let heads = Heads { n_heads: 1, n_kv_heads: 1, head_dim: 4 };
    let (k, v) = (put(&mut wgpu, &[1f32; 8]), put(&mut wgpu, &[2f32; 8]));
    let (k_ptr, v_ptr) = (put(&mut wgpu, &[0f32; 512]), put(&mut wgpu, &[0f32; 512]));
    let table_ptr = put(&mut wgpu, &[0u32]);
    let (dtype, n_pages, n_seqs, seq_pages) = (DType::F32, 1, 1, 1);
    let cache = KvCache { k_ptr, v_ptr, dtype, n_pages, table_ptr, n_seqs, seq_pages };
    let positions = put(&mut wgpu, &[127u32, 128]);
    let call = KvStoreCall { k, v, cache, positions, sequences: None, m: 2, heads };
    wgpu.dispatch_kv_store(&call).unwrap();
    let mut out = [0u8; 2048];
    let error = fulmen_core::DeviceMemory::read(&mut wgpu, k_ptr, &mut out).unwrap_err().to_string();
    assert_eq!(error, "the position of row 1 is 128, but there are only 128");
    let rows: Vec<f32> = get(&mut wgpu, k_ptr, 512);
    assert_eq!(rows, [[0.0; 508].as_slice(), &[1.0; 4]].concat());
    // A page that the sequence does not have.
    fulmen_core::DeviceMemory::write(&mut wgpu, table_ptr, &NO_PAGE.to_le_bytes()).unwrap();
    wgpu.dispatch_kv_store(&KvStoreCall { m: 1, ..call }).unwrap();
    let error = wgpu.synchronize().unwrap_err().to_string();
    assert_eq!(error, "the page of row 0 is 4294967295, but there are only 1");
}
