//! Whole layers over several steps: every fusion and every memory plan agrees with the f64 reference.

use std::sync::Arc;

use fulmen_core::{DType, Fusions, PlanOptions, Sharing};
use fulmen_cpu::CpuDispatcher;
use fulmen_testkit::Tolerance;
use fulmen_testkit::check::compare_all;
use fulmen_testkit::layers::{HIDDEN, LAYERS, LayerSpec, hidden};
use fulmen_testkit::reference::Interpreter;
use fulmen_testkit::rig::{GUARD, Rig};

/// Rounding errors accumulate over layers and steps; q8 activations and caches are rounded in each.
fn tolerance(spec: &LayerSpec) -> Tolerance {
    let coarse = spec.weights.is_quantized() || spec.cache == DType::Q8_0;
    Tolerance::nmse(if coarse { 1e-3 } else { 1e-5 })
}

fn words(values: &[u32]) -> Arc<Vec<u8>> {
    Arc::new(values.iter().flat_map(|value| value.to_le_bytes()).collect())
}

/// Runs some steps on the CPU and in f64, and compares outputs and caches after each.
fn compare_steps(spec: &LayerSpec, options: &PlanOptions, count: u32) {
    let (graph, data) = (spec.graph().unwrap(), spec.data(5).unwrap());
    let mut reference = Interpreter::new(&graph, &data).unwrap();
    let mut cpu = CpuDispatcher::new();
    let mut rig = Rig::new(&mut cpu, graph, options, &data).unwrap();
    for step in 0..count {
        for (name, bytes) in spec.inputs(step) {
            rig.write(&mut cpu, name, Arc::clone(&bytes)).unwrap();
            reference.set(name, bytes).unwrap();
        }
        rig.run(&mut cpu).unwrap();
        reference.run().unwrap();
        let result = compare_all(&mut cpu, &rig, &reference, tolerance(spec));
        result.unwrap_or_else(|error| panic!("{spec:?} with {options:?}, step {step}: {error}"));
        rig.surroundings(&mut cpu).unwrap().unwrap();
    }
    rig.release(&mut cpu).unwrap();
}

#[test]
fn every_fusion_and_memory_plan_matches_the_reference() {
    for kind in LAYERS {
        for (m, n_seqs) in [(1, 1), (3, 1), (3, 3)] {
            for (weights, cache) in [
                (DType::F32, DType::F32),
                (DType::F16, DType::F16),
                (DType::Q8_0, DType::Q8_0),
                (DType::Q4_K, DType::F16),
            ] {
                let spec = LayerSpec { kind, layers: 2, m, weights, cache, n_seqs };
                for fusions in [Fusions::all(), Fusions::none()] {
                    for sharing in [Sharing::Never, Sharing::ByLifetime, Sharing::InPlace] {
                        compare_steps(
                            &spec,
                            &PlanOptions { fusions, sharing, guard: GUARD, ..PlanOptions::default() },
                            4,
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn each_fusion_alone_matches_the_reference() {
    let none = Fusions::none();
    for kind in LAYERS {
        let (weights, cache) = (DType::F32, DType::F16);
        let spec = LayerSpec { kind, layers: 2, m: 2, weights, cache, n_seqs: 1 };
        for fusions in [
            Fusions { swiglu: true, ..none },
            Fusions { add_rms_norm: true, ..none },
            Fusions { residual: true, ..none },
            Fusions { shared_input: true, ..none },
            Fusions { rope_store: true, ..none },
        ] {
            compare_steps(&spec, &PlanOptions { fusions, guard: GUARD, ..PlanOptions::default() }, 3);
        }
    }
}

/// The outputs of a prompt, prefilled `m` rows at a time.
fn outputs(spec: &LayerSpec, prompt: u32) -> Vec<f32> {
    let (graph, data) = (spec.graph().unwrap(), spec.data(5).unwrap());
    let mut cpu = CpuDispatcher::new();
    let mut rig = Rig::new(&mut cpu, graph, &PlanOptions::default(), &data).unwrap();
    let (y, all) = (rig.bound.find("y").unwrap(), hidden(prompt as usize, 0));
    let mut out = Vec::new();
    for (step, rows) in all.chunks(spec.m as usize * HIDDEN as usize * 4).enumerate() {
        let first = step as u32 * spec.m;
        rig.write(&mut cpu, "x", Arc::new(rows.to_vec())).unwrap();
        rig.write(&mut cpu, "positions", words(&(first..first + spec.m).collect::<Vec<_>>())).unwrap();
        rig.run(&mut cpu).unwrap();
        out.extend(rig.read(&mut cpu, y).unwrap().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)));
    }
    rig.release(&mut cpu).unwrap();
    out
}

#[test]
fn prefill_in_chunks_matches_prefill_row_by_row() {
    for kind in LAYERS {
        for (weights, cache) in
            [(DType::F32, DType::F32), (DType::F16, DType::F16), (DType::Q4_K, DType::Q8_0)]
        {
            let one = LayerSpec { kind, layers: 2, m: 1, weights, cache, n_seqs: 1 };
            let expected = outputs(&one, 12);
            for m in [2, 3, 12] {
                let got = outputs(&LayerSpec { m, ..one }, 12);
                let error: f64 = got.iter().zip(&expected).map(|(a, b)| f64::from(a - b).powi(2)).sum();
                let size: f64 = expected.iter().map(|x| f64::from(*x).powi(2)).sum();
                let bound = if weights.is_quantized() { 1e-3 } else { 1e-6 };
                assert!(error / size < bound, "{} {weights} m {m}: {:e}", kind.name, error / size);
            }
        }
    }
}
