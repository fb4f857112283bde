use super::*;
use crate::data_dir::{DataDir, FileIdentity, FoundFile, RangeReceiver};
use fullbore_format::root::Tablespace;
use std::{
    path::Path,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
};

/// Files of any length: the byte at an offset is the offset, modulo 251. Files with `gone` in their name are
/// not there, and `broken` is an error.
#[derive(Debug, Default)]
struct AnyFiles {
    statements: AtomicU64,
    sent: AtomicU64,
}

impl DataDir for AnyFiles {
    fn path(&self) -> &Path {
        Path::new("")
    }

    fn list(&self, _: &[u8]) -> Result<Vec<FoundFile>> {
        Ok(Vec::new())
    }

    fn stat(&self, _: &[&[u8]]) -> Result<Vec<Option<FoundFile>>> {
        Ok(Vec::new())
    }

    fn read(&self, ranges: &[FileRange<'_>], each: RangeReceiver<'_>) -> Result<()> {
        self.statements.fetch_add(1, Relaxed);
        for range in ranges {
            self.sent.fetch_add(range.len.into(), Relaxed);
            match range.path {
                b"gone" => each(None),
                b"broken" => return Err(Error::corrupt("a session was lost")),
                _ => each(Some(&bytes(range.offset, range.len))),
            }
        }
        Ok(())
    }

    fn tablespaces(&self) -> Result<Vec<Tablespace>> {
        Ok(Vec::new())
    }

    fn identity(&self, _: &[u8]) -> Result<Option<FileIdentity>> {
        Ok(None)
    }
}

fn bytes(offset: u64, len: u32) -> Vec<u8> {
    (offset..offset + u64::from(len))
        .map(|at| (at % 251) as u8)
        .collect()
}

/// A piece of a file, in rows.
fn item(path: &str, offset: u64, len: u32) -> FetchItem {
    let rows = crate::data_dir::rows(path.as_bytes(), offset, len.into());
    FetchItem {
        key: (path.into(), offset),
        ranges: rows.map(|range| (range.offset, range.len)).collect(),
        is_padded: true,
    }
}

/// Runs `run` while fetchers read the items that it adds.
fn with_fetchers(fetchers: usize, budget: u64, run: impl FnOnce(&FetchQueue, &AnyFiles)) {
    let queue = FetchQueue::new(fetchers, budget);
    let files = AnyFiles::default();
    thread::scope(|scope| {
        for fetcher in 0..fetchers {
            let (queue, files) = (&queue, &files);
            scope.spawn(move || queue.fetch(fetcher, files));
        }
        run(&queue, &files);
        queue.stop();
    });
}

const PIECE: u32 = 200_000;

#[test]
fn every_item_arrives_with_its_bytes() {
    for (fetchers, budget) in [(1, 1), (4, 1), (3, 10 << 20)] {
        with_fetchers(fetchers, budget, |queue, _| {
            for number in 0..200 {
                queue.add(item("file", number * u64::from(PIECE), PIECE));
            }
            queue.close();
            for number in 0..200 {
                let offset = number * u64::from(PIECE);
                let taken = queue.take(&("file".into(), offset)).unwrap().unwrap();
                assert_eq!(taken.bytes, bytes(offset, PIECE));
                assert_eq!(queue.take(&("file".into(), offset)).unwrap(), None, "taken");
            }
        });
    }
}

#[test]
fn no_more_arrives_than_the_budget_and_a_window_of_each_fetcher() {
    with_fetchers(4, 8 << 20, |queue, files| {
        for number in 0..500 {
            queue.add(item("file", number * u64::from(PIECE), PIECE));
        }
        queue.close();
        thread::sleep(std::time::Duration::from_millis(200));
        let sent = files.sent.load(Relaxed);
        let most = (8 << 20) + 4 * (WINDOW_BYTES + u64::from(ROW_BYTES));
        assert!(sent > 8 << 20 && sent <= most, "{sent}");
    });
}

#[test]
fn a_statement_asks_for_several_windows() {
    with_fetchers(2, 64 << 20, |queue, files| {
        for number in 0..1000 {
            queue.add(item("file", number * u64::from(PIECE), PIECE));
        }
        queue.close();
        for number in 0..1000 {
            queue
                .take(&("file".into(), number * u64::from(PIECE)))
                .unwrap();
        }
        let statements = files.statements.load(Relaxed);
        assert!(statements < 30, "{statements} for 200 MB");
    });
}

#[test]
fn a_file_that_is_gone_is_missing_and_has_zeros() {
    with_fetchers(2, 1, |queue, _| {
        queue.add(item("gone", 0, 10));
        queue.add(item("there", 0, 10));
        queue.close();
        assert_eq!(queue.is_missing(&("gone".into(), 0)).unwrap(), Some(true));
        assert_eq!(queue.is_missing(&("there".into(), 0)).unwrap(), Some(false));
        assert_eq!(queue.is_missing(&("other".into(), 0)).unwrap(), None);
        let gone = queue.take(&("gone".into(), 0)).unwrap().unwrap();
        assert!(gone.is_missing && gone.bytes == [0; 10]);
    });
}

#[test]
fn an_error_reaches_the_threads_that_wait() {
    with_fetchers(1, 1, |queue, _| {
        queue.add(item("broken", 0, 10));
        queue.add(item("file", 0, 10));
        queue.close();
        let lost = queue.take(&("broken".into(), 0)).unwrap_err();
        assert!(lost.line().contains("a session was lost"), "{lost:?}");
        let later = queue.take(&("file".into(), 0)).unwrap_err();
        assert_eq!(later.kind, ErrorKind::Bug, "the first error is the reason");
    });
}
