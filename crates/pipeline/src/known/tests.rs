use super::*;
use fullbore_format::page::{FrameAt, ManifestPage};
use proptest::{collection::vec, prelude::*};

fn known(lens: &[Vec<u32>]) -> BaseEntry {
    let mut start = 0;
    let mut offset = 0;
    let part = |lens: &Vec<u32>| {
        let extents = lens.iter().map(|len| {
            offset += 1000;
            Extent {
                frame: FrameAt {
                    segment: 0,
                    offset,
                    stored_len: 10,
                    plain_len: 5000,
                },
                inner: 7,
                len: *len,
            }
        });
        let record = Record {
            extents: extents.collect(),
            from: start,
            ..Record::default()
        };
        start += lens.iter().map(|len| u64::from(*len)).sum::<u64>();
        PageItem::new(
            Arc::new(ManifestPage {
                records: vec![record],
                ..ManifestPage::default()
            }),
            0,
        )
    };
    BaseEntry::new(lens.iter().filter_map(part).collect(), Trust::Nothing)
}

#[test]
fn runs_to_store_again_are_read_with_possible_changes() {
    let run = |offset, len| ByteRun { offset, len };
    let known = || known(&[vec![100]]).store_again(vec![run(16, 8), run(40, 16), run(90, 10)]);
    let narrowed = |runs: &[ByteRun], size| {
        let mut known = known();
        known.limit_changes(runs.to_vec(), size);
        known.changed.map(|runs| runs.to_vec()).unwrap_or_default()
    };
    assert_eq!(narrowed(&[], 100), [run(16, 8), run(40, 16), run(90, 10)]);
    assert_eq!(
        narrowed(&[run(0, 8), run(24, 8), run(48, 24)], 95),
        [run(0, 8), run(16, 16), run(40, 32), run(90, 5)]
    );
    assert_eq!(narrowed(&[run(0, 80)], 80), [run(0, 80)]);
}

#[test]
fn only_what_changed_is_here() {
    let run = |offset, len| ByteRun { offset, len };
    let mut known = known(&[vec![100]]);
    assert_eq!(known.split_by_changes(0, 50), None);
    known.changed = Some([run(10, 10), run(40, 30)].into());
    let kept = |position, len| StoredRun::Kept { at: position, len };
    let here = |inner, len| StoredRun::Here { inner, len };
    assert_eq!(
        known.split_by_changes(0, 50),
        Some(vec![kept(0, 10), here(0, 10), kept(20, 20), here(10, 10)])
    );
    assert_eq!(
        known.split_by_changes(50, 50),
        Some(vec![here(0, 20), kept(70, 30)])
    );
    assert_eq!(known.split_by_changes(15, 3), Some(vec![here(0, 3)]));
    assert_eq!(known.split_by_changes(70, 30), Some(vec![kept(70, 30)]));
}

proptest! {
    #[test]
    fn runs_are_found_wherever_they_begin(lens in vec(vec(1u32..50, 1..5), 1..4), cuts in vec((0u64..200, 1u64..60), 1..8)) {
        let known = known(&lens);
        let total: u64 = lens.iter().flatten().map(|len| u64::from(*len)).sum();
        let bytes = |offset: u64, len: u64, finder: &mut Finder| {
            let mut found = Vec::new();
            finder.find(&known, offset, len, |_, extent| {
                found.extend((0..extent.len).map(|i| (extent.frame.offset, extent.inner + i)));
            });
            found
        };
        let all = bytes(0, total, &mut Finder::default());
        prop_assert_eq!(all.len() as u64, total);
        let mut finder = Finder::default();
        for (offset, len) in cuts {
            let (offset, end) = (offset.min(total), (offset + len).min(total));
            prop_assert_eq!(&bytes(offset, end - offset, &mut finder)[..], &all[offset as usize..end as usize]);
        }
    }
}
