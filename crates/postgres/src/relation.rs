//! Names of the files of relations: `16384`, `16384.1`, `16384_fsm`, `16384_init`.
//!
//! A relation is a run of blocks, cut into segment files, see [`Sizes`]. Beside its main fork it
//! may have a free space map, a visibility map and, if it is unlogged, an init fork.

/// Sizes of pages and of relation files; fixed when the server is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Bytes of a page (block).
    pub page_bytes: u32,
    pub segment_blocks: u32,
}

impl Default for Sizes {
    /// The sizes of nearly every server: pages of 8 KiB in files of 1 GiB.
    fn default() -> Self {
        Self {
            page_bytes: 8192,
            segment_blocks: 131_072,
        }
    }
}

/// OIDs of the tablespaces that every cluster has: `pg_default`, in `base`, and `pg_global` (pg_tablespace.dat).
pub const DEFAULT_TABLESPACE: u32 = 1663;
const GLOBAL_TABLESPACE: u32 = 1664;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RelationFork {
    /// Rows.
    Main,
    /// Free space map.
    FreeSpace,
    /// Visibility map.
    Visibility,
    /// Initial state of an unlogged relation.
    Init,
}

/// A parsed file name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RelationFile {
    /// File number of the relation (`relfilenode`); not always its OID.
    pub number: u32,
    pub fork: RelationFork,
    /// Number of the segment, from 0.
    pub segment: u32,
}

/// Parses a number as the server writes it: digits without a leading zero, not zero.
pub fn number(text: &[u8]) -> Option<u32> {
    let plain =
        text.first().is_some_and(|&digit| digit != b'0') && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text)
        .ok()
        .filter(|_| plain)?
        .parse()
        .ok()
}

/// Parses the name of a file of a relation that is not temporary; `None` for any other name.
pub fn parse(name: &[u8]) -> Option<RelationFile> {
    let (stem, segment) = split_optional(name, b'.');
    let (stem, fork) = split_optional(stem, b'_');
    let fork = match fork {
        None => RelationFork::Main,
        Some(b"fsm") => RelationFork::FreeSpace,
        Some(b"vm") => RelationFork::Visibility,
        Some(b"init") => RelationFork::Init,
        Some(_) => return None,
    };
    let segment = segment.map_or(Some(0), number)?;
    Some(RelationFile {
        number: number(stem)?,
        fork,
        segment,
    })
}

/// Returns whether this is a file of a temporary relation: `t`, a session number, `_`, and then the
/// name of a relation file.
pub fn is_temporary(name: &[u8]) -> bool {
    let Some((session, rest)) = name
        .strip_prefix(b"t")
        .and_then(|rest| split_once(rest, b'_'))
    else {
        return false;
    };
    !session.is_empty() && session.iter().all(u8::is_ascii_digit) && parse(rest).is_some()
}

/// Returns the number of the first block of the file at `path`, if its pages have checksums in a
/// cluster with checksums (rule 21).
///
/// Block numbers continue from one segment of a relation to the next. `None` for all other files:
/// file number maps, the control file, caches, temporary relations, and files outside the
/// directories of relations.
pub fn first_block(path: &[u8], sizes: Sizes) -> Option<u32> {
    let (_, name) = relation_place(path)?;
    parse(name)?.segment.checked_mul(sizes.segment_blocks)
}

/// Returns the relation of the file at `path` as the WAL names it: tablespace, database (0 for
/// shared relations) and the file.
pub fn relation_of(path: &[u8]) -> Option<(u32, u32, RelationFile)> {
    let (database, name) = relation_place(path)?;
    let tablespace = match path.split(|&byte| byte == b'/').collect::<Vec<_>>()[..] {
        [b"global", ..] => GLOBAL_TABLESPACE,
        [b"base", ..] => DEFAULT_TABLESPACE,
        [_, oid, ..] => number(oid)?,
        _ => return None,
    };
    Some((tablespace, database.unwrap_or(0), parse(name)?))
}

/// Returns the OID of the database that the file at `path` belongs to; `None` in `global` and
/// outside databases.
pub fn database_of(path: &[u8]) -> Option<u32> {
    relation_place(path)?.0
}

/// Returns the database and the name of a file in a directory of relations.
fn relation_place(path: &[u8]) -> Option<(Option<u32>, &[u8])> {
    let parts: Vec<&[u8]> = path.split(|&byte| byte == b'/').collect();
    match parts[..] {
        [b"global", name] => Some((None, name)),
        [b"base", database, name] => Some((Some(number(database)?), name)),
        [b"pg_tblspc", oid, version, database, name] if version.starts_with(b"PG_") => number(oid)
            .and(number(database))
            .map(|database| (Some(database), name)),
        _ => None,
    }
}

/// Returns the text before the first `separator`, and the text after it if there is an `separator`.
fn split_optional(text: &[u8], separator: u8) -> (&[u8], Option<&[u8]>) {
    split_once(text, separator).map_or((text, None), |(head, tail)| (head, Some(tail)))
}

/// Splits at the first `separator`.
fn split_once(text: &[u8], separator: u8) -> Option<(&[u8], &[u8])> {
    let place = text.iter().position(|&byte| byte == separator)?;
    Some((&text[..place], &text[place + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn block_numbers_run_on_from_segment_to_segment() {
        let first_block = |path: &[u8]| super::first_block(path, Sizes::default());
        assert_eq!(first_block(b"base/5/16384"), Some(0));
        assert_eq!(first_block(b"base/5/16384.2"), Some(262_144));
        assert_eq!(first_block(b"base/5/16384_fsm.1"), Some(131_072));
        assert_eq!(first_block(b"base/5/16384_vm"), Some(0));
        assert_eq!(first_block(b"base/5/16384_init"), Some(0));
        assert_eq!(first_block(b"global/1262"), Some(0));
        assert_eq!(
            first_block(b"pg_tblspc/16400/PG_15_202209061/5/16384"),
            Some(0)
        );
        let others = Sizes {
            page_bytes: 32_768,
            segment_blocks: 32_768,
        };
        assert_eq!(super::first_block(b"base/5/16384.2", others), Some(65_536));
    }

    #[test]
    fn relations_have_the_names_that_the_wal_uses() {
        let relation_of = |path: &[u8]| {
            relation_of(path)
                .map(|(space, database, file)| (space, database, file.number, file.segment))
        };
        assert_eq!(relation_of(b"base/5/16384.2"), Some((1663, 5, 16384, 2)));
        assert_eq!(relation_of(b"global/1262"), Some((1664, 0, 1262, 0)));
        assert_eq!(
            relation_of(b"pg_tblspc/16400/PG_17_202406281/5/16384_vm"),
            Some((16400, 5, 16384, 0))
        );
        assert_eq!(relation_of(b"base/5/pg_filenode.map"), None);
    }

    #[test]
    fn files_without_pages_are_not_relations() {
        for path in [
            "PG_VERSION",
            "base/5/PG_VERSION",
            "base/5/pg_filenode.map",
            "base/5/pg_internal.init",
            "global/pg_control",
            "base/5/t3_16384",
            "base/5/16384.",
            "base/5/16384_x",
            "base/5/016384",
            "base/5/16384.0",
            "base/x/16384",
            "base/16384",
            "pg_xact/0000",
            "pg_tblspc/16400/5/16384",
            "pg_tblspc/16400/PG_15_1/pgsql_tmp/1",
            "mine/base/5/1",
            "base/5/99999999999",
            "base/5/16384.99999",
            "base/5/16384_fsm_vm",
            "",
        ] {
            assert_eq!(
                first_block(path.as_bytes(), Sizes::default()),
                None,
                "{path}"
            );
        }
    }

    #[test]
    fn the_database_of_a_file_is_the_directory_it_is_in() {
        assert_eq!(database_of(b"base/5/PG_VERSION"), Some(5));
        assert_eq!(
            database_of(b"pg_tblspc/16400/PG_15_202209061/7/16384"),
            Some(7)
        );
        assert_eq!(database_of(b"global/1262"), None);
        assert_eq!(database_of(b"base/pgsql_tmp/5"), None);
    }

    #[test]
    fn temporary_relations_are_recognized_by_their_names() {
        for name in ["t3_16384", "t3_16384_fsm", "t12_16384.1", "t0_1_vm.3"] {
            assert!(is_temporary(name.as_bytes()), "{name}");
        }
        for name in [
            "t",
            "t3",
            "t_16384",
            "t3_",
            "t3_x",
            "3_16384",
            "t3x_16384",
            "t3_16384_x",
        ] {
            assert!(!is_temporary(name.as_bytes()), "{name}");
        }
    }

    proptest! {
        #[test]
        fn every_name_the_server_makes_is_understood(
            number in 1u32.., segment in 0u32..32_768, fork in prop::sample::select(vec!["", "_fsm", "_vm", "_init"]),
        ) {
            let tail = if segment == 0 { String::new() } else { format!(".{segment}") };
            let file = parse(format!("{number}{fork}{tail}").as_bytes()).unwrap();
            prop_assert_eq!((file.number, file.segment), (number, segment));
            let temporary = format!("t1_{number}{fork}{tail}");
            prop_assert!(is_temporary(temporary.as_bytes()) && parse(temporary.as_bytes()).is_none());
        }

        #[test]
        fn any_bytes_are_parsed_without_a_panic(path: Vec<u8>) {
            let _ = (first_block(&path, Sizes::default()), database_of(&path), is_temporary(&path));
        }
    }
}
