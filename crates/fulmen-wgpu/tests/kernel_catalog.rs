//! The catalog of kernels, and the final WGSL of some of them compared with text files.
//!
//! After an intended change of a kernel, `FULMEN_UPDATE=1 cargo test -p fulmen-wgpu --test
//! kernel_catalog` rewrites the files; the diff is what a reviewer reads.

use std::collections::HashSet;
use std::path::Path;

use fulmen_wgpu::kernel::Caps;
use fulmen_wgpu::kernels::catalog::catalog;

/// The smallest device that WebGPU allows.
fn small_device() -> Caps {
    Caps {
        subgroups: None,
        f16: false,
        immediate_bytes: 0,
        cooperative_matrix: false,
        max_invocations: 256,
        workgroup_memory: 16 << 10,
        max_binding: 128 << 20,
        max_buffer: 256 << 20,
        max_storage_buffers: 8,
        binding_alignment: 256,
        ..Caps::large_device()
    }
}

const SNAPSHOTS: [&str; 6] = [
    "matmul/gemv_nk",
    "matmul/gemm_coop",
    "matmul/split_k_sum",
    "qmatmul/gemv_q4_k",
    "qmatmul/fused_gemv_gate_up",
    "qmatmul/gemm_int8",
];

#[test]
fn every_kernel_is_in_the_catalog_of_a_large_device() {
    let (large, small) = (catalog(&Caps::large_device()), catalog(&small_device()));
    let names = |all: &[fulmen_wgpu::kernels::catalog::CatalogEntry]| -> HashSet<&'static str> {
        all.iter().map(|entry| entry.name).collect()
    };
    assert_eq!(names(&large).len(), large.len(), "names are unique");
    let only_large: HashSet<_> = names(&large).difference(&names(&small)).copied().collect();
    let needs_features = [
        "matmul/gemm_coop",
        "matmul/convert_f16",
        "qmatmul/gemm_coop",
        "qmatmul/fused_gemv_qkv",
        "attention/prefill_coop",
    ];
    assert!(only_large.iter().all(|name| needs_features.contains(name)), "{only_large:?}");
    for entry in large.iter().chain(&small) {
        assert!(entry.wgsl.contains("fn main("), "{}", entry.name);
        assert!(entry.wgsl.contains("@group(0) @binding(0)"), "{}", entry.name);
        assert!(!entry.wgsl.contains("{{") && !entry.about.is_empty(), "{}", entry.name);
    }
}

#[test]
fn kernels_are_as_their_snapshots() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots");
    let all = catalog(&Caps::large_device());
    for name in SNAPSHOTS {
        let entry = all.iter().find(|entry| entry.name == name).unwrap_or_else(|| panic!("no kernel {name}"));
        let text = format!("// {name}: {}\n{}", entry.label, entry.wgsl);
        let path = folder.join(format!("{}.wgsl", name.replace('/', "_")));
        if std::env::var_os("FULMEN_UPDATE").is_some() {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&path, &text).unwrap();
        }
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            kept == text,
            "{name} differs from {}; if that is intended, run the test with FULMEN_UPDATE=1",
            path.display()
        );
    }
}
