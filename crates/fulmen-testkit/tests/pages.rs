//! KV pages on the CPU: however pages are assigned to sequences, the bits are those of a contiguous cache.

use fulmen_core::{
    Backend, BackendError, Bindings, BoundGraph, CacheSpec, DType, DeviceMemory, GraphBuilder, Heads,
    KernelDispatch, KvCache, NO_PAGE, PageLayout, PlanOptions, RopePairing, RopeSpec, Rotation,
};
use fulmen_cpu::CpuDispatcher;
use fulmen_testkit::draw::normal;

const HEADS: Heads = Heads { n_heads: 4, n_kv_heads: 2, head_dim: 64 };
const SEQ_PAGES: u32 = 3;
const SEQUENCES: u32 = 3;
const PAGES: u32 = 12;

/// The keys, values and page table of a layer in device memory.
struct Cache {
    kv: KvCache,
    bindings: Bindings,
}

impl Cache {
    fn new(backend: &mut dyn Backend, dtype: DType, table: &[u32]) -> Cache {
        let bytes = PageLayout::new(dtype, HEADS).unwrap().pool_bytes(PAGES).unwrap();
        let mut poisoned = || {
            let ptr = backend.alloc(bytes).unwrap();
            backend.write(ptr, &vec![0xFF; bytes]).unwrap();
            ptr
        };
        let (k_ptr, v_ptr) = (poisoned(), poisoned());
        let table_ptr = backend.alloc(4 * table.len()).unwrap();
        backend.write(table_ptr, bytemuck::cast_slice(table)).unwrap();
        let mut bindings = Bindings::new();
        for (name, ptr) in [("kv.k", k_ptr), ("kv.v", v_ptr), ("pages", table_ptr)] {
            bindings.set(name, ptr);
        }
        let (n_pages, n_seqs, seq_pages) = (PAGES, SEQUENCES, SEQ_PAGES);
        Cache { kv: KvCache { k_ptr, v_ptr, dtype, n_pages, table_ptr, n_seqs, seq_pages }, bindings }
    }
}

/// RoPE, store and attention of `m` rows.
fn step(backend: &mut dyn Backend, cache: &Cache, m: u32) -> BoundGraph {
    let mut b = GraphBuilder::new();
    let q = b.input("q", m, HEADS.q_width()).unwrap();
    let (k, v) = (b.input("k", m, HEADS.kv_width()).unwrap(), b.input("v", m, HEADS.kv_width()).unwrap());
    let positions = b.indices("positions", m).unwrap();
    let sequences = Some(b.indices("sequences", m).unwrap());
    let table = b.page_table("pages", SEQUENCES, SEQ_PAGES).unwrap();
    let spec = CacheSpec { dtype: cache.kv.dtype, n_pages: PAGES, table, heads: HEADS };
    let kv = b.kv_cache("kv", spec).unwrap();
    let rope = RopeSpec::new(RopePairing::NeoX, HEADS.head_dim, 1e4);
    let rotation = Rotation { spec: rope, positions, factors: None };
    let q = b.rope_store([q, k, v], [None; 2], 1e-6, rotation, kv, sequences).unwrap();
    let y = b.cache_attention(q, kv, positions, sequences, 0.125).unwrap();
    b.output("y", y).unwrap();
    b.finish().plan(&PlanOptions::default()).unwrap().bind(backend, &cache.bindings).unwrap()
}

/// Positions that have the same data in all sequences.
const PREFIX: u32 = 200;

/// The results of rows (sequence, position), with data that depend on these alone.
fn run(backend: &mut dyn Backend, cache: &Cache, rows: &[(u32, u32)]) -> Result<Vec<u32>, BackendError> {
    let graph = step(backend, cache, rows.len() as u32);
    for (name, width) in [("q", HEADS.q_width()), ("k", HEADS.kv_width()), ("v", HEADS.kv_width())] {
        let values = rows.iter().flat_map(|&(sequence, position)| {
            let text = if position < PREFIX { 0 } else { u64::from(sequence) };
            let seed = text << 40 | u64::from(position) << 8 | u64::from(name.as_bytes()[0]);
            normal(&mut fastrand::Rng::with_seed(seed), width as usize, 0.0, 1.0)
        });
        graph.write_f32(backend, name, &values.collect::<Vec<f32>>()).unwrap();
    }
    let (sequences, positions): (Vec<u32>, Vec<u32>) = rows.iter().copied().unzip();
    graph.write_u32(backend, "positions", &positions).unwrap();
    graph.write_u32(backend, "sequences", &sequences).unwrap();
    let result = graph.run(backend).map_err(|error| match error {
        fulmen_core::ExecError::Node { source, .. } | fulmen_core::ExecError::Backend(source) => source,
        other => panic!("{other}"),
    });
    let bits = graph.read_u32(backend, "y").unwrap();
    graph.release(backend).unwrap();
    result.map(|_| bits)
}

/// Prompts in chunks, then decode steps of all sequences together.
fn steps(chunk: u32) -> Vec<Vec<(u32, u32)>> {
    let lengths = [300, 129, 255];
    let mut steps = Vec::new();
    for first in (0..300).step_by(chunk as usize) {
        for (sequence, &length) in (0..).zip(&lengths) {
            let end = length.min(first + chunk);
            steps.push((first..end.max(first)).map(|position| (sequence, position)).collect());
        }
    }
    for more in 0..4 {
        steps.push((0..).zip(&lengths).map(|(sequence, length)| (sequence, length + more)).collect());
    }
    steps.retain(|rows: &Vec<_>| !rows.is_empty());
    steps
}

const CONTIGUOUS: [u32; 9] = [0, 1, 2, 3, 4, 5, 6, 7, 8];
const INTERLEAVED: [u32; 9] = [0, 3, 6, 1, 4, 7, 2, 5, 8];
const SCATTERED: [u32; 9] = [11, 2, 7, 0, 9, NO_PAGE, 4, 10, 1];

#[test]
fn assigned_pages_do_not_change_a_bit() {
    let mut cpu = CpuDispatcher::with_threads(2);
    for dtype in [DType::F32, DType::F16, DType::Q8_0] {
        for chunk in [127, 128, 129, 257] {
            let mut caches =
                [CONTIGUOUS, INTERLEAVED, SCATTERED].map(|table| Cache::new(&mut cpu, dtype, &table));
            for rows in steps(chunk) {
                let [contiguous, others @ ..] = &mut caches;
                let expected = run(&mut cpu, contiguous, &rows).unwrap();
                assert!(expected.iter().all(|&bits| f32::from_bits(bits).is_finite()));
                for other in others {
                    let got = run(&mut cpu, other, &rows).unwrap();
                    assert!(got == expected, "{dtype}, chunks of {chunk}, rows from {:?}", rows[0]);
                }
            }
        }
    }
}

#[test]
fn a_copied_page_continues_a_shared_prefix() {
    let mut cpu = CpuDispatcher::with_threads(2);
    for dtype in [DType::F32, DType::F16, DType::Q8_0] {
        // Sequence 1 has the prefix of sequence 0 and goes on in its own way: one page is shared, the other,
        // which both write, copied.
        let cache = Cache::new(&mut cpu, dtype, &[4, 9, 2, 4, 6, 0, NO_PAGE, NO_PAGE, NO_PAGE]);
        let prefix = |sequence| (0..PREFIX).map(|at| (sequence, at)).collect::<Vec<_>>();
        let more = |sequence| (PREFIX..PREFIX + 60).map(|at| (sequence, at)).collect::<Vec<_>>();
        run(&mut cpu, &cache, &prefix(0)).unwrap();
        for copy in cache.kv.copy_page(HEADS, 9, 6).unwrap() {
            cpu.dispatch_copy(&copy).unwrap();
        }
        for sequence in [1, 0] {
            let cold = Cache::new(&mut cpu, dtype, &CONTIGUOUS);
            run(&mut cpu, &cold, &prefix(sequence)).unwrap();
            let expected = run(&mut cpu, &cold, &more(sequence)).unwrap();
            assert_eq!(run(&mut cpu, &cache, &more(sequence)).unwrap(), expected, "{dtype} {sequence}");
        }
    }
}

#[test]
fn a_page_that_is_not_in_the_pool_is_an_error_that_names_it() {
    let mut cpu = CpuDispatcher::with_threads(1);
    for (page, entry) in [(PAGES, 1), (NO_PAGE, 0)] {
        let mut table = CONTIGUOUS;
        table[entry] = page;
        let cache = Cache::new(&mut cpu, DType::F16, &table);
        let bytes = PageLayout::new(DType::F16, HEADS).unwrap().pool_bytes(PAGES).unwrap();
        // The row's own page, or one that it reads.
        let error = run(&mut cpu, &cache, &[(1, 0), (0, 130)]).unwrap_err();
        let expected = format!("the page of row 1 is {page}, but there are only {PAGES}");
        assert_eq!(error.to_string(), expected);
        // Where the row's own page is the wrong one, nothing was stored.
        let mut keys = vec![0; bytes];
        cpu.read(cache.kv.k_ptr, &mut keys).unwrap();
        assert_eq!(keys.iter().all(|&byte| byte == 0xFF), entry == 1);
    }
}
