//! One of several shares of a repository, for work that is divided between machines.
//!
//! Which share a thing belongs to follows from its name alone. So machines that look at different times agree, whatever backups were
//! added or pruned meanwhile: no data is in two shares, and all shares together are everything.

use fullbore_format::{page::SegmentId, root::Root, text::source_text};
use std::fmt;

/// Parts of a segment that are in one share: 256 MiB. Most files then lie in one share as a whole.
const PARTS_TOGETHER: u64 = 32;

/// Shares at most.
const MOST: u32 = 100_000;

/// A share, and how many there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// From 0.
    number: u32,
    of: u32,
}

impl Shard {
    /// Parses `K/N`, with K from 1 to N.
    ///
    /// # Errors
    /// A sentence for the operator.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("use K/N with K from 1 to N, and N up to {MOST}, as 1/4");
        let (number, of) = text.split_once('/').ok_or_else(wrong)?;
        let number: u32 = number.parse().map_err(|_| wrong())?;
        let of: u32 = of.parse().map_err(|_| wrong())?;
        let is_right = (1..=of).contains(&number) && of <= MOST;
        is_right
            .then(|| Self {
                number: number - 1,
                of,
            })
            .ok_or_else(wrong)
    }

    /// The share in words: `share 1 of 4`.
    pub fn words(self) -> String {
        format!("share {} of {}", self.number + 1, self.of)
    }

    /// Returns whether a part of a segment is in this share. Neighbours of a large segment go to the shares in turn.
    pub fn has_part(self, segment: &SegmentId, index: u64) -> bool {
        let name = format!("{}/{}/{}", segment.backup, segment.stream, segment.number);
        let turn = hash(&name).wrapping_add(index / PARTS_TOGETHER);
        turn % u64::from(self.of) == u64::from(self.number)
    }

    /// Returns whether a backup is in this share. All backups of a source are in one, because they refer to each other.
    pub fn has_backup(self, root: &Root) -> bool {
        let name = match &root.postgres {
            Some(cluster) => format!("cluster {}", cluster.system_identifier),
            None => source_text(&root.source),
        };
        hash(&name) % u64::from(self.of) == u64::from(self.number)
    }

    /// Returns whether this is the first share, which does what cannot be divided.
    pub fn is_first(self) -> bool {
        self.number == 0
    }
}

/// `1/4`
impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number + 1, self.of)
    }
}

fn hash(name: &str) -> u64 {
    let hash = blake3::hash(name.as_bytes());
    hash.as_bytes()
        .first_chunk()
        .map_or(0, |first| u64::from_le_bytes(*first))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_format::root::SourceInfo;

    fn segment(number: u32) -> SegmentId {
        SegmentId {
            backup: "20261121T054501Z-k3f9qa".into(),
            stream: 1,
            number,
        }
    }

    fn shards(of: u32) -> Vec<Shard> {
        (1..=of)
            .map(|number| Shard::parse(&format!("{number}/{of}")).unwrap())
            .collect()
    }

    #[test]
    fn each_part_and_each_source_is_in_exactly_one_share() {
        for of in [1, 2, 3, 7, 16] {
            let shards = shards(of);
            let mut counts = vec![0u32; of as usize];
            for (number, index) in
                (0..20).flat_map(|number| (0..300).map(move |index| (number, index)))
            {
                let owners = shards.iter().zip(&mut counts);
                let owners = owners.filter(|(shard, _)| shard.has_part(&segment(number), index));
                assert_eq!(owners.map(|(_, count)| *count += 1).count(), 1);
            }
            // 200 units of a segment that ends in a short one: no share has much more than another.
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            assert!(*most <= least * 2 + 64, "{of}: {counts:?}");
            for host in 0..50 {
                let root = Root {
                    source: SourceInfo {
                        host: format!("web{host}"),
                        ..SourceInfo::default()
                    },
                    ..Root::default()
                };
                assert_eq!(
                    shards
                        .iter()
                        .filter(|shard| shard.has_backup(&root))
                        .count(),
                    1
                );
            }
        }
    }

    #[test]
    fn a_share_is_one_of_those_that_exist() {
        for bad in [
            "",
            "1",
            "0/2",
            "3/2",
            "1/0",
            "a/b",
            "1/2/3",
            "-1/2",
            "1/100001",
            "4294967297/2",
        ] {
            assert!(Shard::parse(bad).is_err(), "{bad}");
        }
        assert!(Shard::parse("1/1").unwrap().is_first());
        assert!(!Shard::parse("2/2").unwrap().is_first());
    }
}
