use super::*;

/// Returns a map of runs of 10 bytes, each after a hole of the given length.
fn map(holes: impl Iterator<Item = u64>) -> MappedFile {
    let mut map = MappedFile::default();
    let mut offset = 0;
    for hole in holes {
        map.push(offset + hole, offset + hole + 10);
        offset += hole + 10;
    }
    map
}

#[test]
fn gaps_are_data_on_disk_and_holes_in_the_backup() {
    let run = |offset, len| ByteRun { offset, len };
    assert_eq!(
        gaps(&[run(10, 5), run(20, 5)], &[run(0, 12), run(14, 20)]),
        [run(0, 10), run(15, 5), run(25, 9)]
    );
    assert_eq!(gaps(&[], &[run(3, 4)]), [run(3, 4)]);
    assert_eq!(gaps(&[run(0, 9)], &[run(3, 4)]), []);
}

#[test]
fn the_smallest_holes_are_filled_first() {
    let small = |i: &u64| i % 2 == 1;
    let map = map((0..MAX_RUNS as u64 * 2).map(|i| if small(&i) { 1 } else { 1000 }));
    assert!(map.runs.len() <= MAX_RUNS);
    assert!(
        map.runs
            .windows(2)
            .all(|pair| gap(&pair[0], &pair[1]) == 1000)
    );
    assert!(map.runs.len() >= MAX_RUNS / 2);
}

#[test]
fn at_least_half_the_limit_of_equal_holes_is_kept() {
    for count in [MAX_RUNS, MAX_RUNS + 1, MAX_RUNS * 3] {
        let runs = map(std::iter::repeat_n(5, count)).runs;
        assert!(
            runs.len() <= MAX_RUNS && runs.len() >= MAX_RUNS / 2,
            "{}",
            runs.len()
        );
        assert!(runs.windows(2).all(|pair| gap(&pair[0], &pair[1]) > 0));
        assert_eq!(
            runs.last().map(|run| run.offset + run.len),
            Some(count as u64 * 15)
        );
    }
}

#[test]
fn runs_that_touch_are_one() {
    let mut map = MappedFile::default();
    for (start, end) in [(0, 5), (5, 9), (9, 9), (10, 12)] {
        map.push(start, end);
    }
    assert_eq!(
        map.runs,
        [
            ByteRun { offset: 0, len: 9 },
            ByteRun { offset: 10, len: 2 }
        ]
    );
}
