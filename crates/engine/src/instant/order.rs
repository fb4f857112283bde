//! The order in which the content of files comes that nobody waits for.

use super::{
    placeholders::is_relation,
    plan_file::{InstantPlan, PlannedFile},
};
use fullbore_format::entry::split;
use fullbore_postgres::relation::{RelationFork, parse};
use std::{collections::HashMap, fs::File, io::Read, path::Path};

/// Relations with smaller numbers are those of the catalogs.
const FIRST_NORMAL: u32 = 16_384;
/// Bytes of `autoprewarm.blocks` that are read.
const MAX_LIST_BYTES: u64 = 64 << 20;
/// Name of the list in the data directory.
const LIST: &str = "autoprewarm.blocks";
/// Bytes of a block of the list.
const BLOCK_BYTES: u64 = 8192;
/// Blocks of a file of a relation.
const SEGMENT_BLOCKS: u64 = 131_072;
/// OIDs of the tablespaces `pg_default` and `pg_global`.
const DEFAULT_SPACE: u32 = 1663;
const GLOBAL_SPACE: u32 = 1664;

/// Returns the numbers of all files: catalogs, then maps of visibility and free space, then the rest in the order of
/// the backup.
pub(super) fn file_order(plan: &InstantPlan) -> Vec<u32> {
    let mut order: Vec<u32> = (0..plan.files.len() as u32).collect();
    if plan.head.cluster.is_some() {
        order.sort_by_key(|index| rank(&plan.files[*index as usize]));
    }
    order
}

fn rank(file: &PlannedFile) -> u8 {
    let path = &file.path.0;
    match parse(split(path).1) {
        Some(relation) if is_relation(path) && relation.number < FIRST_NORMAL => 0,
        Some(relation) if relation.fork != RelationFork::Main => 1,
        _ => 2,
    }
}

/// Returns the places that the list of `pg_prewarm` names, each with its file and its byte in the file, in the order of
/// the list. A list that is not there, or is not understood, names no places.
pub(super) fn prewarmed(data: &Path, plan: &InstantPlan) -> Vec<(u32, u64)> {
    let mut text = String::new();
    let read = File::open(data.join(LIST))
        .and_then(|file| file.take(MAX_LIST_BYTES).read_to_string(&mut text));
    if read.is_err() {
        return Vec::new();
    }
    let files = plan.files.iter().zip(0..);
    let by_path: HashMap<&[u8], u32> = files
        .map(|(file, index)| (&file.path.0[..], index))
        .collect();
    // The first line is the count.
    let lines = text.lines().skip(1);
    let places = lines.filter_map(|line| {
        let (path, offset) = place_of(line)?;
        let file = *by_path.get(path.as_bytes())?;
        (offset < plan.files[file as usize].size).then_some((file, offset))
    });
    places.collect()
}

/// Reads `database,tablespace,filenode,fork,block`.
fn place_of(line: &str) -> Option<(String, u64)> {
    let mut numbers = line.split(',').map(|word| word.trim().parse::<u32>().ok());
    let mut next = || numbers.next().flatten();
    let (database, space, node, fork, block) = (next()?, next()?, next()?, next()?, next()?);
    let fork = match fork {
        0 => "",
        1 => "_fsm",
        2 => "_vm",
        _ => return None,
    };
    let segment = match u64::from(block) / SEGMENT_BLOCKS {
        0 => String::new(),
        segment => format!(".{segment}"),
    };
    let top = match space {
        GLOBAL_SPACE => "global".to_owned(),
        DEFAULT_SPACE => format!("base/{database}"),
        _ => return None,
    };
    let offset = u64::from(block) % SEGMENT_BLOCKS * BLOCK_BYTES;
    Some((format!("{top}/{node}{fork}{segment}"), offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_list_of_pg_prewarm_names_a_place() {
        for (line, place) in [
            ("5,1663,16384,0,3", Some(("base/5/16384", 24576))),
            ("5,1663,16384,2,131073", Some(("base/5/16384_vm.1", 8192))),
            ("0,1664,1262,0,0", Some(("global/1262", 0))),
            ("5,99999,16384,0,3", None),
            ("<<12>>", None),
            ("", None),
        ] {
            let place = place.map(|(path, offset)| (path.to_owned(), offset));
            assert_eq!(place_of(line), place, "{line}");
        }
    }
}
