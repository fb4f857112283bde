//! Backups that share lists which are lost, with the page and with the root of the backup that wrote it: they get the lists that are left.
//!
//! A backup without changes has the pages of its base. So it has what was rebuilt of the backup whose lists it shared.

use super::{
    RepairAction, RepairStep,
    root::{RebuiltRoot, rebuild},
};
use fullbore_format::{
    error::Error,
    layout,
    root::{Lists, Root},
    text::counted,
};
use fullbore_repository::{
    archive::{Archive, unnamed_losses},
    roots::key,
};
use fullbore_storage::Objects;
use std::{collections::BTreeSet, sync::Arc};

/// Returns the root of backup `id` as it is stored, if it shares lists.
fn short_root(objects: &dyn Objects, id: &str) -> Option<Root> {
    let (bytes, _) = objects.get(&key(id, layout::ROOT)).ok()??;
    let root = Root::of_backup_as_stored(id, &bytes, "").ok()?;
    root.is_short().then_some(root)
}

/// Returns whether the root of backup `id` can be read, but for lists that it shares.
pub(super) fn are_shared(objects: &dyn Objects, id: &str) -> bool {
    short_root(objects, id).is_some()
}

/// Returns the steps for backup `id`, which shares lists that cannot be read because of this error; `None` if nothing is left of them. `whole`
/// are the backups whose roots can be read, and `rebuilt` those whose roots are rebuilt first.
pub(super) fn steps(
    objects: &Arc<dyn Objects>,
    id: &str,
    error: &Error,
    whole: &[Archive],
    rebuilt: &BTreeSet<String>,
) -> Option<Vec<RepairStep>> {
    let short = short_root(&**objects, id)?;
    let other = short.lists_of.clone();
    if rebuilt.contains(&other) {
        return Some(vec![RepairStep::new(
            objects,
            format!("run `fullbore repair` again for backup {id:?}"),
            vec![format!(
                "it shares the lists of backup {other:?}, which is rebuilt first"
            )],
            RepairAction::Nothing,
        )]);
    }
    let known = whole.iter().find(|archive| archive.root.id == other);
    let RebuiltRoot { root, pages, .. } = match known {
        Some(archive) => RebuiltRoot {
            root: archive.root.clone(),
            pages: Vec::new(),
            notes: Vec::new(),
        },
        // It is forgotten, and its document is lost.
        None => rebuild(objects, &other, whole).ok()?,
    };
    let lists = Lists::of(&root);
    let named = Root {
        lists_digest: lists.clear_digest(),
        ..short
    };
    let mut new = named.with_lists(lists, "").ok()?;
    new.forget_lists();
    unnamed_losses::copy_losses(&mut new, &root);
    let manifest = (!pages.is_empty()).then(|| {
        RepairStep::new(
            objects,
            format!(
                "write {} of the manifest of backup {other:?} again, from their copies",
                counted(pages.len() as u64, "page")
            ),
            Vec::new(),
            RepairAction::Manifest(other.clone(), pages),
        )
    });
    let step = RepairStep::new(
        objects,
        format!("give backup {id:?} the lists that are left of backup {other:?}"),
        vec![error.line()],
        RepairAction::Root(Vec::new(), Box::new(new)),
    );
    Some(manifest.into_iter().chain([step]).collect())
}
