use super::*;

fn workers(size: usize) -> Arc<FrameWorkers<u64, u64>> {
    let work = || -> Result<WorkFn<u64, u64>> {
        Ok(Box::new(|n| {
            std::thread::sleep(std::time::Duration::from_micros(n % 7 * 50));
            Ok(n * 2)
        }))
    };
    FrameWorkers::start(NonZeroUsize::new(size).unwrap(), Arc::default(), work).unwrap()
}

#[test]
fn one_worker_and_many_give_the_same_order() {
    for size in [1, 2, 7, 16] {
        let out: Vec<_> = workers(size)
            .ordered((0..300).map(Ok), FrameLine::new(size + 1, size + 1))
            .map(Result::unwrap)
            .collect();
        assert_eq!(
            out,
            (0..300).map(|n| n * 2).collect::<Vec<_>>(),
            "{size} workers"
        );
    }
}

#[test]
fn streams_share_a_crew_and_each_keeps_its_order() {
    let workers = workers(3);
    let mut streams: Vec<_> = (0..4)
        .map(|i| workers.ordered((i..i + 50).map(Ok), FrameLine::new(2, 2)))
        .collect();
    for round in 0..50 {
        for (i, stream) in streams.iter_mut().enumerate() {
            assert_eq!(stream.next().unwrap().unwrap(), (i as u64 + round) * 2);
        }
    }
}

#[test]
fn what_is_urgent_is_computed_first() {
    let (permits, order) = (Permits::new(NonZeroUsize::MIN), Mutex::new(Vec::new()));
    let note = |who| order.lock().unwrap().push(who);
    std::thread::scope(|scope| {
        permits.hold(|| {
            (0..3).for_each(|_| _ = scope.spawn(|| permits.hold(|| note("another"))));
            scope.spawn(|| permits.hold_first(|| note("urgent")));
            while permits.0.lock().0.urgent == 0 {
                std::thread::yield_now();
            }
        });
    });
    assert_eq!(
        order.into_inner().unwrap(),
        ["urgent", "another", "another", "another"]
    );
}

#[test]
fn an_error_keeps_its_place_in_line() {
    let input = (0..10).map(|n| {
        if n == 6 {
            Err(Error::corrupt("six"))
        } else {
            Ok(n)
        }
    });
    let out: Vec<_> = workers(4).ordered(input, FrameLine::new(3, 3)).collect();
    assert_eq!(out.iter().position(Result::is_err), Some(6));
    assert_eq!(out.len(), 10);
}

#[test]
fn items_in_flight_stay_under_the_depth() {
    static LIVE: AtomicUsize = AtomicUsize::new(0);
    static PEAK: AtomicUsize = AtomicUsize::new(0);
    let input = (0..200u64).map(|n| {
        PEAK.fetch_max(LIVE.fetch_add(1, Relaxed) + 1, Relaxed);
        Ok(n)
    });
    for result in workers(8).ordered(input, FrameLine::new(2, 5)) {
        result.unwrap();
        LIVE.fetch_sub(1, Relaxed);
    }
    // 5 in line, one in the feeder's hand before it has a place, one in ours.
    assert!(PEAK.load(Relaxed) <= 7, "{}", PEAK.load(Relaxed));
}

#[test]
fn a_worker_that_panics_is_an_error_in_its_place() {
    let work = || -> Result<WorkFn<u64, u64>> {
        Ok(Box::new(|n| {
            assert_ne!(n, 3, "this panic belongs to the test");
            Ok(n)
        }))
    };
    let workers = FrameWorkers::start(NonZeroUsize::new(2).unwrap(), Arc::default(), work).unwrap();
    let out: Vec<_> = workers
        .ordered((0..8).map(Ok), FrameLine::new(3, 3))
        .collect();
    assert_eq!(out.iter().map(Result::is_err).position(|bad| bad), Some(3));
    assert_eq!(out.len(), 8);
}

#[test]
fn an_input_that_panics_is_an_error_at_the_end() {
    let input = (0..8).map(|n| {
        assert_ne!(n, 3, "this panic belongs to the test");
        Ok(n)
    });
    let out: Vec<_> = workers(2).ordered(input, FrameLine::new(3, 3)).collect();
    assert_eq!(
        out.iter().map(Result::is_err).collect::<Vec<_>>(),
        [false, false, false, true]
    );
}

#[test]
fn dropping_the_output_stops_the_feeder() {
    let mut stream = workers(4).ordered((0..).map(Ok), FrameLine::new(4, 4));
    assert_eq!(stream.next().unwrap().unwrap(), 0);
    drop(stream);
}
