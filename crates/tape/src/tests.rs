//! What every drive does, whatever its device can: one suite for all kinds.

use crate::{
    Drive, Fault, ReadOutcome, RecordOutcome, Space, TapeDrive,
    sim::{EarlyWarning, SimClock, SimDevice, SimFault, SimFaultKind, SimSettings},
};
use std::path::Path;

const RECORD: usize = 4096;

/// Drives that differ in all that a device may lack.
fn kinds() -> Vec<(&'static str, SimSettings)> {
    let small = SimSettings {
        capacity_bytes: 40 * RECORD as u64,
        warning_bytes: 10 * RECORD as u64,
        buffer_bytes: 4 * RECORD as u64,
        most_record_bytes: 4 * RECORD as u32,
        ..SimSettings::default()
    };
    let taken = SimSettings {
        early_warning: EarlyWarning::Taken,
        ..small.clone()
    };
    let without_places = SimSettings {
        has_places: false,
        tells_buffer: false,
        ..small.clone()
    };
    let taken_without_places = SimSettings {
        early_warning: EarlyWarning::Taken,
        ..without_places.clone()
    };
    let fixed = SimSettings {
        block_bytes: RECORD as u32,
        ..small.clone()
    };
    vec![
        ("refused", small),
        ("taken", taken),
        ("without places", without_places),
        ("taken, without places", taken_without_places),
        ("fixed", fixed),
    ]
}

fn drive_in(dir: &Path, settings: SimSettings) -> TapeDrive<SimDevice> {
    let path = dir.join("cartridge");
    let _ = std::fs::remove_file(&path);
    let clock = SimClock::virtual_time();
    TapeDrive::new(SimDevice::create(&path, settings, clock).unwrap(), "sim")
}

/// Runs a test with a blank cartridge in a drive of each kind.
fn with_each(test: impl Fn(&str, TapeDrive<SimDevice>)) {
    let dir = tempfile::tempdir().unwrap();
    for (kind, settings) in kinds() {
        test(kind, drive_in(dir.path(), settings));
    }
}

/// A record that tells its number.
fn record(number: u64) -> Vec<u8> {
    let mut bytes = vec![7; RECORD];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Reads up to the end of the data; a mark is `None`.
fn read_all(drive: &mut dyn Drive) -> Vec<Option<u64>> {
    let mut buffer = vec![0; RECORD];
    let mut found = Vec::new();
    loop {
        match drive.read(&mut buffer).unwrap() {
            ReadOutcome::EndOfData => return found,
            ReadOutcome::Mark => found.push(None),
            ReadOutcome::Record(len) => {
                assert_eq!(len, RECORD);
                found.push(Some(u64::from_le_bytes(buffer[..8].try_into().unwrap())));
            }
        }
    }
}

/// Writes two records, a mark, a record, a mark.
fn write_two_files(drive: &mut dyn Drive) {
    for number in [0, 1] {
        assert_eq!(drive.record(&record(number)).unwrap(), RecordOutcome::Taken);
    }
    assert_eq!(drive.mark().unwrap(), RecordOutcome::Taken);
    assert_eq!(drive.record(&record(3)).unwrap(), RecordOutcome::Taken);
    assert_eq!(drive.mark().unwrap(), RecordOutcome::Taken);
}

#[test]
fn records_and_marks_are_read_in_their_order() {
    with_each(|kind, mut drive| {
        write_two_files(&mut drive);
        drive.flush().unwrap();
        assert_eq!(drive.position().unwrap().next, 5, "{kind}");
        drive.rewind().unwrap();
        assert_eq!(
            read_all(&mut drive),
            [Some(0), Some(1), None, Some(3), None],
            "{kind}"
        );
        assert_eq!(drive.position().unwrap().next, 5, "{kind}");
    });
}

#[test]
fn a_record_is_found_by_its_place() {
    with_each(|kind, mut drive| {
        write_two_files(&mut drive);
        for (block, rest) in [
            (3, &[Some(3), None][..]),
            (1, &[Some(1), None, Some(3), None]),
        ] {
            drive.locate(block).unwrap();
            assert_eq!(drive.position().unwrap().next, block, "{kind}");
            assert_eq!(read_all(&mut drive), rest, "{kind}");
        }
        drive.locate(5).unwrap();
        let beyond = drive.locate(6).unwrap_err();
        assert_eq!(beyond.fault, Fault::Medium, "{kind}");
    });
}

#[test]
fn the_head_goes_over_marks_and_records() {
    with_each(|kind, mut drive| {
        write_two_files(&mut drive);
        drive.rewind().unwrap();
        drive.space(Space::Marks(1)).unwrap();
        assert_eq!(read_all(&mut drive), [Some(3), None], "{kind}");
        drive.space(Space::Marks(-2)).unwrap();
        drive.space(Space::Records(-1)).unwrap();
        assert_eq!(
            read_all(&mut drive),
            [Some(1), None, Some(3), None],
            "{kind}"
        );
        drive.rewind().unwrap();
        drive.space(Space::EndOfData).unwrap();
        assert_eq!(read_all(&mut drive), [], "{kind}");
        let beyond = drive.space(Space::Marks(1)).unwrap_err();
        assert_eq!(beyond.fault, Fault::Medium, "{kind}");
    });
}

#[test]
fn a_write_removes_what_followed() {
    with_each(|kind, mut drive| {
        write_two_files(&mut drive);
        drive.locate(1).unwrap();
        drive.record(&record(8)).unwrap();
        drive.mark().unwrap();
        drive.rewind().unwrap();
        assert_eq!(read_all(&mut drive), [Some(0), Some(8), None], "{kind}");
    });
}

#[test]
fn what_is_appended_follows_the_last_mark() {
    with_each(|kind, mut drive| {
        write_two_files(&mut drive);
        drive.rewind().unwrap();
        drive.space(Space::EndOfData).unwrap();
        drive.record(&record(5)).unwrap();
        drive.mark().unwrap();
        drive.rewind().unwrap();
        assert_eq!(read_all(&mut drive)[4..], [None, Some(5), None], "{kind}");
    });
}

#[test]
fn every_record_that_was_taken_is_on_the_medium_once_and_no_other() {
    with_each(|kind, mut drive| {
        let (mut taken, mut near) = (0, 0);
        loop {
            match drive.record(&record(taken)).unwrap() {
                RecordOutcome::Full => break,
                RecordOutcome::Taken => assert_eq!(near, 0, "{kind}: near the end once is always"),
                RecordOutcome::TakenNearEnd => near += 1,
            }
            taken += 1;
        }
        assert_eq!(taken, 40, "{kind}: all room is used");
        assert!((9..=11).contains(&near), "{kind}: {near}");
        drive.flush().unwrap();
        drive.rewind().unwrap();
        let mut found = read_all(&mut drive);
        // The rewind wrote the mark that was owed.
        assert_eq!(found.pop(), Some(None), "{kind}");
        assert_eq!(found, (0..40).map(Some).collect::<Vec<_>>(), "{kind}");
    });
}

#[test]
fn marks_and_records_alternate_behind_the_early_warning() {
    with_each(|kind, mut drive| {
        let mut written = Vec::new();
        while drive.record(&record(written.len() as u64)).unwrap() == RecordOutcome::Taken {
            written.push(Some(written.len() as u64));
        }
        written.push(Some(written.len() as u64));
        for _ in 0..3 {
            assert_eq!(drive.mark().unwrap(), RecordOutcome::TakenNearEnd, "{kind}");
            written.push(None);
            let number = written.len() as u64;
            assert_eq!(
                drive.record(&record(number)).unwrap(),
                RecordOutcome::TakenNearEnd,
                "{kind}"
            );
            written.push(Some(number));
        }
        drive.rewind().unwrap();
        let mut found = read_all(&mut drive);
        assert_eq!(found.pop(), Some(None), "{kind}");
        assert_eq!(found, written, "{kind}");
    });
}

fn with_fault(block: u64, kind: SimFaultKind) -> SimSettings {
    let (_, mut settings) = kinds().swap_remove(0);
    settings.faults = vec![SimFault { block, kind }];
    settings
}

#[test]
fn a_late_error_tells_the_place_to_write_on_from() {
    let dir = tempfile::tempdir().unwrap();
    let mut drive = drive_in(dir.path(), with_fault(3, SimFaultKind::Write));
    let mut failed = None;
    for number in 0..20 {
        if let Err(error) = drive.record(&record(number)) {
            failed = Some((number, error));
            break;
        }
    }
    let (number, error) = failed.unwrap();
    assert_eq!(error.fault, Fault::Medium);
    assert!(number > 3, "later than the record: {number}");
    let place = drive.position().unwrap();
    assert_eq!((place.next, place.on_medium), (3, Some(3)));
    for number in 3..6 {
        drive.record(&record(number)).unwrap();
    }
    drive.flush().unwrap();
    drive.rewind().unwrap();
    let found = read_all(&mut drive);
    assert_eq!(found[..6], [0, 1, 2, 3, 4, 5].map(Some));
}

#[test]
fn after_a_reset_each_call_fails_until_a_rewind() {
    let dir = tempfile::tempdir().unwrap();
    let mut drive = drive_in(dir.path(), with_fault(2, SimFaultKind::Reset));
    let error = loop {
        if let Err(error) = drive.record(&record(0)) {
            break error;
        }
    };
    assert_eq!(error.fault, Fault::PositionLost);
    assert_eq!(drive.position().unwrap_err().fault, Fault::PositionLost);
    assert_eq!(drive.mark().unwrap_err().fault, Fault::PositionLost);
    drive.rewind().unwrap();
    assert_eq!(read_all(&mut drive).len(), 2);
}

#[test]
fn the_error_of_a_buffered_record_is_that_of_the_flush_or_the_close() {
    let dir = tempfile::tempdir().unwrap();
    let mut drive = drive_in(dir.path(), with_fault(1, SimFaultKind::Write));
    drive.record(&record(0)).unwrap();
    drive.record(&record(1)).unwrap();
    assert_eq!(drive.flush().unwrap_err().fault, Fault::Medium);
    let mut drive = drive_in(dir.path(), with_fault(1, SimFaultKind::Write));
    drive.record(&record(0)).unwrap();
    drive.record(&record(1)).unwrap();
    assert_eq!(Box::new(drive).close().unwrap_err().fault, Fault::Medium);
}

#[test]
fn a_bad_record_is_passed() {
    let dir = tempfile::tempdir().unwrap();
    let mut drive = drive_in(dir.path(), with_fault(1, SimFaultKind::Read));
    write_two_files(&mut drive);
    drive.rewind().unwrap();
    let mut buffer = vec![0; RECORD];
    drive.read(&mut buffer).unwrap();
    assert_eq!(drive.read(&mut buffer).unwrap_err().fault, Fault::Medium);
    assert_eq!(read_all(&mut drive), [None, Some(3), None]);
}

#[test]
fn a_record_that_does_not_fit_is_an_error_and_is_passed() {
    let (_, settings) = kinds().swap_remove(0);
    let dir = tempfile::tempdir().unwrap();
    let mut drive = drive_in(dir.path(), settings);
    write_two_files(&mut drive);
    drive.rewind().unwrap();
    let error = drive.read(&mut [0; 100]).unwrap_err();
    assert_eq!(error.fault, Fault::RecordTooLong);
    assert_eq!(read_all(&mut drive)[0], Some(1));
    drive.rewind().unwrap();
    let long = vec![0; 4 * RECORD + 1];
    assert_eq!(drive.record(&long).unwrap_err().fault, Fault::RecordRefused);
}

#[test]
fn protection_and_a_missing_medium_are_told() {
    with_each(|kind, mut drive| {
        write_two_files(&mut drive);
        drive.device_mut().settings_mut().write_protected = true;
        let refused = drive.record(&record(5)).unwrap_err();
        assert_eq!(refused.fault, Fault::WriteProtected, "{kind}");
    });
    with_each(|kind, mut drive| {
        write_two_files(&mut drive);
        drive.unload().unwrap();
        assert!(drive.status().unwrap().no_medium, "{kind}");
        assert_eq!(drive.rewind().unwrap_err().fault, Fault::NoMedium, "{kind}");
        assert_eq!(
            drive.record(&[7; RECORD]).unwrap_err().fault,
            Fault::NoMedium,
            "{kind}"
        );
        Box::new(drive).close().unwrap();
    });
}

#[test]
fn a_tape_that_is_written_once_takes_appended_records_only() {
    let (_, mut settings) = kinds().swap_remove(0);
    settings.worm = true;
    let dir = tempfile::tempdir().unwrap();
    let mut drive = drive_in(dir.path(), settings);
    write_two_files(&mut drive);
    drive.locate(3).unwrap();
    assert_eq!(
        drive.record(&record(9)).unwrap_err().fault,
        Fault::WriteProtected
    );
    drive.space(Space::EndOfData).unwrap();
    drive.record(&record(5)).unwrap();
}

#[test]
fn a_cartridge_is_found_again_with_a_mark_behind_the_last_record() {
    let dir = tempfile::tempdir().unwrap();
    let (_, settings) = kinds().swap_remove(0);
    let mut drive = drive_in(dir.path(), settings.clone());
    drive.record(&record(0)).unwrap();
    Box::new(drive).close().unwrap();
    let device = SimDevice::open(&dir.path().join("cartridge")).unwrap();
    assert_eq!(device.settings(), &settings);
    assert_eq!(device.counters().starts, 1);
    let mut drive = TapeDrive::new(device, "sim");
    assert_eq!(drive.position().unwrap().next, 2, "where it was left");
    drive.rewind().unwrap();
    assert_eq!(read_all(&mut drive), [Some(0), None]);
}

/// Writes 10 GB that arrive at this rate; returns starts, writes that found the buffer empty, and the
/// rate.
fn write_at(rate: f64) -> (u64, u64, f64) {
    let dir = tempfile::tempdir().unwrap();
    let settings = SimSettings {
        start_seconds: 3.0,
        ..SimSettings::default()
    };
    let path = dir.path().join("cartridge");
    let clock = SimClock::virtual_time();
    let mut device = SimDevice::create(&path, settings, clock.clone()).unwrap();
    device.keep_lengths_only();
    let mut drive = TapeDrive::new(device, "sim");
    let bytes = vec![1; 1 << 20];
    let count = 10_000;
    for _ in 0..count {
        clock.advance(std::time::Duration::from_secs_f64(
            bytes.len() as f64 / rate,
        ));
        drive.record(&bytes).unwrap();
    }
    drive.flush().unwrap();
    let seconds = clock.now().as_secs_f64();
    let counters = drive.device().counters();
    let rate = (count as f64 * bytes.len() as f64) / seconds;
    (counters.starts, counters.found_empty, rate)
}

#[test]
fn a_drive_stops_only_if_less_arrives_than_its_lowest_speed() {
    let (starts, empty, rate) = write_at(1e9);
    assert_eq!((starts, empty), (1, 0));
    assert!((rate / 300e6) > 0.9, "{rate}");
    let (starts, empty, rate) = write_at(160e6);
    assert_eq!((starts, empty), (1, 0));
    assert!((rate / 160e6) > 0.9, "{rate}");
    let (starts, empty, _) = write_at(60e6);
    assert!(starts > 20, "{starts}");
    assert_eq!(starts, empty + 1);
}
