use super::*;
use proptest::prelude::*;

fn joined(algorithm: Algorithm, data: &[u8], frame: usize, block: u64) -> Option<Digest> {
    let mut joiner = Joiner::default();
    if data.is_empty() {
        joiner.push(&piece(algorithm, data, 0, 0, block));
    }
    for (i, bytes) in data.chunks(frame).enumerate() {
        joiner.push(&piece(
            algorithm,
            bytes,
            (i * frame) as u64,
            data.len() as u64,
            block,
        ));
    }
    joiner.finish()
}

proptest! {
    #[test]
    fn pieces_join_to_the_digest_of_the_whole(len in 0usize..70_000, frame_log in 10u32..16, block_log in 10u32..16) {
        let data: Vec<u8> = (0..len).map(|i| (i / 7 % 251) as u8).collect();
        let frame = 1usize << frame_log;
        let block = 1u64 << block_log.min(frame_log);
        prop_assert_eq!(joined(Algorithm::Blake3, &data, frame, block), Some(Digest::Blake3(blake3::hash(&data).into())));
        prop_assert_eq!(joined(Algorithm::Crc32c, &data, frame, block), Some(Digest::Crc32c(crc32c(&data))));
        prop_assert_eq!(joined(Algorithm::None, &data, frame, block), None);
    }
}

proptest! {
    #[test]
    fn blocks_are_hashed_together_as_each_by_itself(len in 0usize..300_000, block_log in 10u32..18, first in 0u64..1 << 30) {
        let data: Vec<u8> = (0..len).map(|i| (i / 7 % 251) as u8).collect();
        let block = 1usize << block_log;
        let offset = first << block_log;
        let alone = data.chunks(block).zip((offset..).step_by(block)).map(|(bytes, position)| block_digest(bytes, position));
        prop_assert_eq!(block_digests(&data, offset, block as u64), alone.collect::<Vec<_>>());
    }
}

proptest! {
    #[test]
    fn files_are_hashed_together_as_each_by_itself(lens in prop::collection::vec(
        prop_oneof![4 => 0usize..5000, 2 => 0usize..40_000, 1 => 0usize..300_000, 1 => (0usize..70).prop_map(|n| n * 1024)],
        0..40,
    )) {
        let data: Vec<u8> = (0..400_000).map(|i| (i / 7 % 251) as u8).collect();
        let contents: Vec<&[u8]> = lens.iter().enumerate().map(|(index, len)| &data[index * 17..][..*len]).collect();
        let alone = contents.iter().map(|content| Digest::Blake3(blake3::hash(content).into()));
        prop_assert_eq!(digests(&contents), alone.collect::<Vec<_>>());
    }
}

proptest! {
    #[test]
    fn pieces_of_any_length_join_too(len in 1u64..300_000, mut cuts in prop::collection::vec(0u64..300, 0..20)) {
        let data: Vec<u8> = (0..len).map(|i| (i / 7 % 251) as u8).collect();
        cuts.retain_mut(|cut| { *cut *= CHUNK; *cut < len });
        cuts.extend([0, len]);
        cuts.sort_unstable();
        for algorithm in [Algorithm::Blake3, Algorithm::Crc32c] {
            let mut joiner = Joiner::default();
            for ends in cuts.windows(2).filter(|ends| ends[0] < ends[1]) {
                let (piece, units) = piece_of_any_bounds(algorithm, &data[ends[0] as usize..ends[1] as usize], ends[0], len).unwrap();
                joiner.push_units(&piece, units);
            }
            let whole = piece_of_any_bounds(algorithm, &data, 0, len).map(|(piece, units)| {
                let mut joiner = Joiner::default();
                joiner.push_units(&piece, units);
                joiner.finish()
            });
            let found = joiner.finish();
            prop_assert_eq!(whole, Some(found));
            if algorithm == Algorithm::Blake3 {
                prop_assert_eq!(found, Some(Digest::Blake3(blake3::hash(&data).into())));
            }
        }
        prop_assert!(len < 2 || piece_of_any_bounds(Algorithm::Blake3, &data[1..], 1, len).is_none());
    }
}

proptest! {
    #[test]
    fn crcs_of_blocks_join_to_the_crc_of_the_whole(len in 0usize..70_000, blocks_of_piece in 1usize..5) {
        let data: Vec<u8> = (0..len).map(|i| (i / 7 % 251) as u8).collect();
        let join = BlockCrcs::new(4096);
        let crc = data.chunks(4096 * blocks_of_piece).fold(None, |before, piece| {
            let blocks: Vec<u32> = piece.chunks(4096).map(crc32c).collect();
            join.join(before, &blocks, piece.len() as u64)
        });
        prop_assert_eq!(crc.unwrap_or(0), crc32c(&data));
    }
}

#[test]
fn crc32c_of_the_check_string_is_the_published_one() {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
}
