//! How large volumes may be.

use fullbore_format::text::size;
use std::str::FromStr;

/// A volume has at least this many bytes: smaller ones would hold little but their own description.
const MIN_BYTES: u64 = 1 << 20;
/// A file of more than this part of a volume is stored in pieces, so that the end of a volume wastes less.
const WHOLE_PART: u64 = 64;
/// A larger file is always stored in pieces.
const MAX_WHOLE_BYTES: u64 = 1 << 30;
/// As [`MAX_WHOLE_BYTES`], where the sizes of later media are not known.
const MAX_WHOLE_UNKNOWN: u64 = 64 << 20;

/// The size of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumeSize {
    /// At most this many bytes.
    Bytes(u64),
    /// Until the medium is full.
    Auto,
}

/// The sizes of the volumes of a backup, never empty: that of the last one holds for all that follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeSizes(Vec<VolumeSize>);

impl VolumeSizes {
    /// The size of volumes as long as none is chosen: one volume takes everything.
    pub fn endless() -> Self {
        Self(vec![VolumeSize::Bytes(u64::MAX)])
    }

    /// Returns the size of volume `number`, which counts from 1.
    pub fn of(&self, number: u32) -> VolumeSize {
        let index = (number as usize).clamp(1, self.0.len()) - 1;
        self.0[index]
    }

    /// Returns whether a volume ends where its medium is full.
    pub fn fill_media(&self) -> bool {
        self.0.contains(&VolumeSize::Auto)
    }

    /// Returns the bytes of a file above which it is stored in pieces. `free_bytes` are those of the first medium.
    pub fn whole_bytes(&self, free_bytes: u64) -> u64 {
        let of = |size: &VolumeSize| match size {
            VolumeSize::Bytes(bytes) => (bytes / WHOLE_PART).min(MAX_WHOLE_BYTES),
            VolumeSize::Auto => (free_bytes / WHOLE_PART).min(MAX_WHOLE_UNKNOWN),
        };
        self.0.iter().map(of).min().unwrap_or(MAX_WHOLE_UNKNOWN)
    }
}

impl FromStr for VolumeSizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = |word: &str| match word {
            "auto" => Ok(VolumeSize::Auto),
            word => match size::parse(word)? {
                bytes if bytes >= MIN_BYTES => Ok(VolumeSize::Bytes(bytes)),
                _ => Err("at least 1M".to_owned()),
            },
        };
        text.split(',')
            .map(parse)
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_size_holds_for_all_volumes_that_follow() {
        let sizes: VolumeSizes = "8G,25G".parse().unwrap();
        let found: Vec<_> = (1..4).map(|number| sizes.of(number)).collect();
        let gigabytes = |count: u64| VolumeSize::Bytes(count << 30);
        assert_eq!(found, [gigabytes(8), gigabytes(25), gigabytes(25)]);
        assert_eq!(sizes.whole_bytes(0), 128 << 20);
        let auto: VolumeSizes = "8G,auto".parse().unwrap();
        assert!(auto.fill_media() && !sizes.fill_media());
        assert_eq!(auto.whole_bytes(1 << 40), MAX_WHOLE_UNKNOWN);
        assert_eq!(auto.whole_bytes(1 << 30), 16 << 20);
        for bad in ["", "1K", "8G,", "full"] {
            assert!(bad.parse::<VolumeSizes>().is_err(), "{bad}");
        }
    }
}
