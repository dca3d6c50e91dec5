//! Reads in flight.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use fulmen_core::{BackendError, Bindings, DType, DeviceMemory, GraphBuilder, PlanOptions};

use crate::gpu;

/// Wakes a thread, and counts.
struct Unpark(Thread, AtomicUsize);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.unpark();
    }
}

/// Polls a future only when it was woken. Fails if that does not happen.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let unpark = Arc::new(Unpark(thread::current(), AtomicUsize::new(1)));
    let waker = Waker::from(Arc::clone(&unpark));
    let mut future = pin!(future);
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if unpark.1.swap(0, Ordering::SeqCst) > 0
            && let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker))
        {
            return value;
        }
        assert!(Instant::now() < deadline, "the task was never woken");
        thread::park_timeout(Duration::from_millis(10));
    }
}

#[test]
fn reads_are_polled_awaited_waited_for_and_dropped() {
    let Some(gpu) = gpu() else { return };
    let mut cuda = gpu.dispatcher();
    let large = 40 << 20;
    let ptr = cuda.alloc(large).unwrap();
    let bytes: Vec<u8> = (0..large).map(|i| (i % 251) as u8).collect();
    cuda.write(ptr, &bytes).unwrap();
    // Dropped while the copy runs: its memory is not used again before that is done.
    for _ in 0..20 {
        drop(cuda.start_read(ptr, large / 8).unwrap());
    }
    let awaited = cuda.start_read(ptr, large).unwrap();
    let waited = cuda.start_read(ptr + 3, 1001).unwrap();
    let mut polled = cuda.start_read(ptr + 251, 5).unwrap();
    // What is written later does not change them.
    cuda.write(ptr, &vec![0xff; large]).unwrap();
    assert!(block_on(awaited).unwrap() == bytes);
    assert_eq!(waited.wait().unwrap(), bytes[3..1004]);
    let deadline = Instant::now() + Duration::from_secs(20);
    let got = loop {
        assert!(Instant::now() < deadline, "the bytes never arrived");
        if let Some(got) = polled.try_take() {
            break got.unwrap();
        }
    };
    assert_eq!(got, [0, 1, 2, 3, 4]);
    let mut whole = vec![0; large];
    cuda.read(ptr, &mut whole).unwrap();
    assert!(whole.iter().all(|&byte| byte == 0xff));
    assert!(cuda.start_read(ptr, 0).unwrap().wait().unwrap().is_empty());
    assert!(matches!(cuda.start_read(ptr, large + 1), Err(BackendError::Address { .. })));
    // A ticket outlives its memory and its dispatcher.
    let last = cuda.start_read(ptr, 4).unwrap();
    cuda.free(ptr).unwrap();
    drop(cuda);
    assert_eq!(last.wait().unwrap(), [0xff; 4]);
}

#[test]
fn a_ticket_reports_the_fault_of_the_work_before_it() {
    let Some(gpu) = gpu() else { return };
    let mut cuda = gpu.dispatcher();
    let mut b = GraphBuilder::new();
    let table = b.weight("table", DType::F32, 8, 64).unwrap();
    let tokens = b.indices("tokens", 2).unwrap();
    let rows = b.embed(table, tokens).unwrap();
    b.output("rows", rows).unwrap();
    let weight: Vec<u8> = (0..512).flat_map(|i| (i as f32).to_ne_bytes()).collect();
    let mut bindings = Bindings::new();
    bindings.set("table", cuda.import(Arc::new(weight)).unwrap());
    let graph = b.finish().plan(&PlanOptions::default()).unwrap().bind(&mut cuda, &bindings).unwrap();
    let (at, bytes) = (graph.address(graph.find("rows").unwrap()), 2 * 64 * 4);
    graph.write_u32(&mut cuda, "tokens", &[1, 8]).unwrap();
    graph.run(&mut cuda).unwrap();
    let error = block_on(cuda.start_read(at, bytes).unwrap()).unwrap_err();
    assert!(matches!(error, BackendError::Index { row: 1, value: 8, limit: 8, .. }), "{error}");
    // It stays for the next call that waits, which clears it.
    assert!(matches!(graph.read(&mut cuda, "rows"), Err(fulmen_core::ExecError::Backend(_))));
    graph.write_u32(&mut cuda, "tokens", &[1, 7]).unwrap();
    graph.run(&mut cuda).unwrap();
    let got = block_on(cuda.start_read(at, bytes).unwrap()).unwrap();
    assert_eq!(f32::from_ne_bytes(got[..4].try_into().unwrap()), 64.0);
}
