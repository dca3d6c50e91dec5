//! Nothing blocks an executor: a single thread that polls several tasks goes on with the others while a
//! batch, a matmul or a read of graph memory is in flight, and no poll takes long.

use std::cell::Cell;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use fulmen_core::{BackendError, Bindings, DeviceMemory, GraphBuilder, PlanOptions};
use fulmen_wgpu::{
    BufferId, CachedMatmul, DeviceOptions, DiskCache, GpuCommandBatch, GpuDevice, GpuMatmulCache,
    MatmulInput, MatmulOutput, PipelineCache, WgpuDispatcher,
};

/// Without a disk cache, so that kernels are compiled.
fn device() -> GpuDevice {
    GpuDevice::with_options(&DeviceOptions { disk_cache: DiskCache::Off, ..DeviceOptions::default() })
        .unwrap()
}

struct TaskWaker {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

struct Task<'a> {
    future: Option<Pin<Box<dyn Future<Output = ()> + 'a>>>,
    waker: Arc<TaskWaker>,
    longest: Duration,
}

/// Polls tasks on this thread until all are done, each only when it was woken. Returns the longest poll of
/// each.
fn run(futures: Vec<Pin<Box<dyn Future<Output = ()> + '_>>>) -> Vec<Duration> {
    let task = |future| Task {
        future: Some(future),
        waker: Arc::new(TaskWaker { thread: thread::current(), woken: AtomicBool::new(true) }),
        longest: Duration::ZERO,
    };
    let mut tasks: Vec<Task<'_>> = futures.into_iter().map(task).collect();
    let deadline = Instant::now() + Duration::from_secs(60);
    while tasks.iter().any(|task| task.future.is_some()) {
        assert!(Instant::now() < deadline, "a task was never woken");
        let mut idle = true;
        for task in &mut tasks {
            let Some(future) = &mut task.future else { continue };
            if !task.waker.woken.swap(false, Ordering::AcqRel) {
                continue;
            }
            idle = false;
            let waker = Waker::from(Arc::clone(&task.waker));
            let start = Instant::now();
            let ready = future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
            task.longest = task.longest.max(start.elapsed());
            if ready {
                task.future = None;
            }
        }
        if idle {
            thread::park_timeout(Duration::from_millis(100));
        }
    }
    tasks.into_iter().map(|task| task.longest).collect()
}

/// Ticks about once a millisecond until `done`, and counts.
struct Ticker<'a> {
    done: &'a Cell<bool>,
    ticks: &'a Cell<usize>,
}

impl Future for Ticker<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.done.get() {
            return Poll::Ready(());
        }
        self.ticks.set(self.ticks.get() + 1);
        thread::sleep(Duration::from_millis(1));
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Runs tasks beside a ticker. The ticker must have gone on while they ran, and no poll of theirs may have
/// taken a large part of that time: a poll that blocks takes nearly all of it. Other processes may delay a
/// poll.
fn run_beside_a_ticker(tasks: Vec<Pin<Box<dyn Future<Output = ()> + '_>>>) {
    let (done, ticks, left) = (Cell::new(false), Cell::new(0), Cell::new(tasks.len()));
    let (done, left) = (&done, &left);
    let start = Instant::now();
    let mut all: Vec<Pin<Box<dyn Future<Output = ()> + '_>>> = Vec::new();
    for task in tasks {
        all.push(Box::pin(async move {
            task.await;
            left.set(left.get() - 1);
            done.set(left.get() == 0);
        }));
    }
    all.push(Box::pin(Ticker { done, ticks: &ticks }));
    let longest = run(all);
    let took = start.elapsed();
    let limit = Duration::from_millis(30) + took / 5;
    let count = longest.len() - 1;
    for longest in &longest[..count] {
        assert!(*longest < limit, "a poll took {longest:?} of {took:?}");
    }
    let least = took.as_millis() as usize / 20;
    assert!(ticks.get() >= least, "{} ticks in {took:?}", ticks.get());
}

const LEN: usize = 2 << 20;

/// A batch that uploads 8 MiB and keeps a software device busy for a while.
fn busy_batch(gpu: &GpuDevice) -> (GpuCommandBatch, BufferId, BufferId) {
    let mut batch = GpuCommandBatch::new(gpu.clone());
    let data: Vec<f32> = (0..LEN).map(|i| (i % 1000) as f32 * 1e-3).collect();
    let x = batch.upload(&data);
    let mut y = x;
    for _ in 0..20 {
        y = batch.tanh(y);
        y = batch.scale(y, 1.25);
    }
    let inside = y;
    let s = batch.sum(y);
    (batch, inside, s)
}

#[test]
fn a_batch_yields_while_it_is_uploaded_compiled_run_and_read() {
    let gpu = device();
    let (mut blocking, inside, sum) = busy_batch(&gpu);
    blocking.execute_with_cache_blocking(&PipelineCache::new()).unwrap();
    let expected = blocking.read_many_blocking(&[sum, inside]).unwrap();

    let gpu = device();
    let cache = PipelineCache::new();
    let task = || async {
        let (mut batch, inside, sum) = busy_batch(&gpu);
        batch.execute_with_cache(&cache).await.unwrap();
        assert_eq!(batch.read(sum).await.unwrap(), expected[0]);
        // It was fused away, so it is computed again.
        assert_eq!(batch.read(inside).await.unwrap(), expected[1]);
    };
    run_beside_a_ticker(vec![Box::pin(task()), Box::pin(task())]);
    assert!(cache.compiled() > 0);
}

#[test]
fn a_batch_that_is_dropped_while_it_is_prepared_runs_as_if_nothing_had_been() {
    let gpu = device();
    let (mut batch, _, sum) = busy_batch(&gpu);
    let (mut other, _, other_sum) = busy_batch(&gpu);
    for polls in 0..4 {
        let mut execute = Box::pin(batch.execute());
        for _ in 0..polls {
            let _ = execute.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
    }
    batch.execute_blocking().unwrap();
    other.execute_blocking().unwrap();
    assert_eq!(batch.read_blocking(sum).unwrap(), other.read_blocking(other_sum).unwrap());
}

#[test]
fn cached_matmuls_yield_while_they_are_compiled_and_run() {
    let (m, k, n) = (24, 512, 1536);
    let data = |seed: usize, len: usize| -> Vec<f32> {
        (0..len).map(|i| ((i * 31 + seed) % 17) as f32 / 16.0 - 0.5).collect()
    };
    let (input, weight) = (data(1, m * k), data(2, n * k));
    let mut expected = vec![0.0; m * n];
    let mut cache = GpuMatmulCache::on(device());
    cache.upload_weight("w", &weight, n, k).unwrap();
    cache.matmul_cached("w", &input, &mut expected, m).unwrap();

    let mut cache = GpuMatmulCache::on(device());
    cache.upload_weight("w", &weight, n, k).unwrap();
    let on_device = cache.device().create_buffer("test", (m * n * 4) as u64).unwrap();
    let mut output = vec![0.0; m * n];
    let task = async {
        // More than there are upload buffers, and none is waited for.
        for _ in 0..12 {
            let (input, output) = (MatmulInput::Host(&input), MatmulOutput::Buffer(&on_device));
            cache.matmul_many_async(&mut [CachedMatmul { weight: "w", m, input, output }]).await.unwrap();
        }
        cache.matmul_cached_async("w", &input, &mut output, m).await.unwrap();
    };
    run_beside_a_ticker(vec![Box::pin(task)]);
    assert_eq!(output, expected);
}

#[test]
fn reads_of_graph_memory_are_tickets() {
    let mut wgpu = WgpuDispatcher::on(&device()).unwrap();
    let ptr = wgpu.alloc(1001).unwrap();
    let bytes: Vec<u8> = (0..1001).map(|i| (i % 251) as u8).collect();
    wgpu.write(ptr, &bytes).unwrap();
    let (whole, part) = (wgpu.start_read(ptr, 1001).unwrap(), wgpu.start_read(ptr + 3, 7).unwrap());
    drop(wgpu.start_read(ptr, 1001).unwrap());
    // What is written later does not change them.
    wgpu.write(ptr, &[0xff; 1001]).unwrap();
    assert_eq!(whole.wait().unwrap(), bytes);
    let mut polled = part;
    let deadline = Instant::now() + Duration::from_secs(20);
    let got = loop {
        assert!(Instant::now() < deadline, "the bytes never arrived");
        match polled.try_take() {
            Some(got) => break got.unwrap(),
            None => thread::sleep(Duration::from_millis(1)),
        }
    };
    assert_eq!(got, bytes[3..10]);
    assert!(wgpu.start_read(ptr, 0).unwrap().wait().unwrap().is_empty());
    assert!(matches!(wgpu.start_read(ptr, 1002), Err(BackendError::Address { .. })));
    // A ticket outlives its memory and its device.
    let last = wgpu.start_read(ptr, 4).unwrap();
    wgpu.free(ptr).unwrap();
    drop(wgpu);
    assert_eq!(last.wait().unwrap(), [0xff; 4]);
}

#[test]
fn a_ticket_yields_while_a_graph_runs_and_reports_its_fault() {
    let mut wgpu = WgpuDispatcher::on(&device()).unwrap();
    let mut b = GraphBuilder::new();
    let table = b.weight("table", fulmen_core::DType::F32, 8, 64).unwrap();
    let tokens = b.indices("tokens", 2).unwrap();
    let rows = b.embed(table, tokens).unwrap();
    b.output("rows", rows).unwrap();
    let plan = b.finish().plan(&PlanOptions::default()).unwrap();
    let weight: Vec<u8> = (0..512).flat_map(|i| (i as f32).to_ne_bytes()).collect();
    let mut bindings = Bindings::new();
    bindings.set("table", wgpu.import(Arc::new(weight)).unwrap());
    let graph = plan.bind(&mut wgpu, &bindings).unwrap();
    let (at, bytes) = (graph.address(graph.find("rows").unwrap()), 2 * 64 * 4);

    graph.write_u32(&mut wgpu, "tokens", &[1, 7]).unwrap();
    graph.run(&mut wgpu).unwrap();
    let ticket = wgpu.start_read(at, bytes).unwrap();
    run_beside_a_ticker(vec![Box::pin(async {
        let got = ticket.await.unwrap();
        assert_eq!(f32::from_ne_bytes(got[..4].try_into().unwrap()), 64.0);
    })]);

    graph.write_u32(&mut wgpu, "tokens", &[1, 8]).unwrap();
    graph.run(&mut wgpu).unwrap();
    let error = wgpu.start_read(at, bytes).unwrap().wait().unwrap_err();
    assert!(matches!(error, BackendError::Index { row: 1, value: 8, limit: 8, .. }), "{error}");
    // The next run is not to blame.
    graph.write_u32(&mut wgpu, "tokens", &[0, 0]).unwrap();
    graph.run(&mut wgpu).unwrap();
    assert_eq!(wgpu.start_read(at, bytes).unwrap().wait().unwrap()[..4], 0f32.to_ne_bytes());
}

#[test]
fn futures_can_be_sent_to_other_threads() {
    fn is_send<T: Send>(_: &T) {}
    let gpu = device();
    let mut batch = GpuCommandBatch::new(gpu);
    let x = batch.upload(&[1.0]);
    is_send(&batch.execute());
    is_send(&batch.read(x));
}
