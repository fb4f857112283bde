//! Page checksums, as PostgreSQL computes them.
//!
//! A page is a table of 32-bit words, 32 in a row. Each column is hashed on its own, in a variant
//! of FNV-1a that mixes high bits back; then the columns are joined. So a processor hashes as many
//! columns at once as its registers hold. The block number is part of the hash, so a page in the
//! wrong place is found. A page read while the server writes it is torn. That is legal and WAL
//! repairs it (rule 20), so the caller reads a bad page once more (rule 21).

/// Columns in a row.
const LANES: usize = 32;

const PRIME: u32 = 16_777_619;

/// Initial hash of each column; part of the format of data files.
const BASIS: [u32; LANES] = [
    0x5b1f_36e9,
    0xb852_5960,
    0x02ab_50aa,
    0x1de6_6d2a,
    0x79ff_467a,
    0x9bb9_f8a3,
    0x217e_7cd2,
    0x83e1_3d2c,
    0xf8d4_474f,
    0xe39e_b970,
    0x42c6_ae16,
    0x9932_16fa,
    0x7b09_3b5d,
    0x98da_ff3c,
    0xf718_902a,
    0x0b1c_9cdb,
    0xe58f_764b,
    0x1876_36bc,
    0x5d7b_3bb1,
    0xe73d_e7de,
    0x92be_c979,
    0xcca6_c0b2,
    0x304a_0979,
    0x85aa_43d4,
    0x7831_25bb,
    0x6ca8_eaa2,
    0xe407_eac6,
    0x4b5c_fc3e,
    0x9fbf_8c76,
    0x15ca_20be,
    0xf2ca_9fd3,
    0x959b_d756,
];

/// Result of checking a page's checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageVerdict {
    /// The checksum matches.
    Good,
    /// All zeros: allocated, but never written.
    Empty,
    /// The checksum does not match, but the page changed since the backup began: WAL has it.
    Newer,
    /// The checksum does not match.
    Bad,
}

/// Returns the checksum that `page` should have as block `block` of its relation.
///
/// `page` is a whole number of rows of 128 bytes: 8 KiB in nearly every server, 1 to 32 KiB in
/// others. Bytes beyond the last whole row are ignored. The checksum's own two bytes count as
/// zeros.
pub fn checksum(page: &[u8], block: u32) -> u16 {
    let (words, _) = page.as_chunks();
    let (rows, _) = words.as_chunks();
    let Some((first, rest)) = rows.split_first() else {
        return 0;
    };
    let mut first = *first;
    first[2][..2].fill(0);
    let mut lanes = BASIS;
    mix(&mut lanes, &first);
    rest.iter().for_each(|row| mix(&mut lanes, row));
    // Two rows of zeros mix the last bits as well.
    mix(&mut lanes, &[[0; 4]; LANES]);
    mix(&mut lanes, &[[0; 4]; LANES]);
    let joined = lanes.into_iter().fold(0, |joined, lane| joined ^ lane) ^ block;
    // Never 0, which means that the page has no checksum.
    (joined % 65_535 + 1) as u16
}

/// Mixes a row into the columns, in place and in a loop: a version that returned a new array was
/// not vectorized, and took 13 % of a backup.
#[inline(always)]
fn mix(lanes: &mut [u32; LANES], row: &[[u8; 4]; LANES]) {
    for (lane, word) in lanes.iter_mut().zip(row) {
        let mixed = *lane ^ u32::from_ne_bytes(*word);
        *lane = mixed.wrapping_mul(PRIME) ^ (mixed >> 17);
    }
}

/// Checks `page`, block `block` of its relation. `start_lsn` is where the backup began in the WAL;
/// with `u64::MAX`, for a stopped cluster, no page is newer.
///
/// A page shorter than its header is bad.
pub fn check(page: &[u8], block: u32, start_lsn: u64) -> PageVerdict {
    let Some((header, _)) = page.split_first_chunk::<24>() else {
        return PageVerdict::Bad;
    };
    let half = |offset: usize| u16::from_ne_bytes([header[offset], header[offset + 1]]);
    // `pd_upper`, the end of the free space, is 0 only in a page never written.
    if half(14) == 0 {
        return if page.iter().all(|&byte| byte == 0) {
            PageVerdict::Empty
        } else {
            PageVerdict::Bad
        };
    }
    if half(8) == checksum(page, block) {
        return PageVerdict::Good;
    }
    if lsn(header) >= start_lsn {
        PageVerdict::Newer
    } else {
        PageVerdict::Bad
    }
}

/// Returns the LSN of the page's last change, stored as two 32-bit numbers, the high half first.
fn lsn(header: &[u8; 24]) -> u64 {
    let word = |index: usize| {
        u32::from_ne_bytes([
            header[index],
            header[index + 1],
            header[index + 2],
            header[index + 3],
        ])
    };
    u64::from(word(0)) << 32 | u64::from(word(4))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A page of `len` bytes with the right checksum, last changed at `at`.
    fn made(len: usize, block: u32, at: u64) -> Vec<u8> {
        let mut page: Vec<u8> = (0..len).map(|i| (i * 7 % 251 + 1) as u8).collect();
        page[0..4].copy_from_slice(&((at >> 32) as u32).to_ne_bytes());
        page[4..8].copy_from_slice(&(at as u32).to_ne_bytes());
        let sum = checksum(&page, block);
        page[8..10].copy_from_slice(&sum.to_ne_bytes());
        page
    }

    #[test]
    fn a_page_that_was_changed_since_the_start_is_newer_and_not_bad() {
        let mut page = made(8192, 7, 0x1_0000_0000);
        assert_eq!(check(&page, 7, 0), PageVerdict::Good);
        page[100] ^= 1;
        assert_eq!(check(&page, 7, 0x1_0000_0000), PageVerdict::Newer);
        assert_eq!(check(&page, 7, 0x1_0000_0001), PageVerdict::Bad);
    }

    #[test]
    fn a_page_without_header_is_empty_only_if_all_of_it_is() {
        let mut page = vec![0; 8192];
        assert_eq!(check(&page, 0, 0), PageVerdict::Empty);
        page[8191] = 1;
        assert_eq!(check(&page, 0, 0), PageVerdict::Bad);
        assert_eq!(check(&[0; 23], 0, 0), PageVerdict::Bad);
    }

    #[test]
    fn every_flipped_bit_is_found_but_for_one_in_the_65535_that_16_bits_can_tell_apart() {
        for size in [10, 13] {
            let mut page = made(1 << size, 5, 1);
            assert_eq!(check(&page, 5, u64::MAX), PageVerdict::Good);
            let mut missed = 0;
            for bit in 0..page.len() * 8 {
                page[bit / 8] ^= 1 << (bit % 8);
                missed += u32::from(check(&page, 5, u64::MAX) == PageVerdict::Good);
                page[bit / 8] ^= 1 << (bit % 8);
            }
            assert!(
                missed <= page.len() as u32 * 8 / 10_000,
                "{missed} in {} bytes",
                page.len()
            );
        }
    }

    proptest! {
        #[test]
        fn a_page_in_the_place_of_its_neighbour_is_found(block in 0u32..u32::MAX) {
            prop_assert_eq!(check(&made(8192, block, 1), block + 1, u64::MAX), PageVerdict::Bad);
        }
    }
}
