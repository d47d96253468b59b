//! What can happen next.

use std::fmt;
use std::sync::LazyLock;

use overwinter_lifecycle::Depth;
use overwinter_lifecycle::admission::Request;
use overwinter_lifecycle::ids::Millis;
use overwinter_lifecycle::loss::record_loss;
use overwinter_lifecycle::operation::{Operation, Outcome, Step};
use overwinter_lifecycle::record::Desired;
use overwinter_lifecycle::recording::Recording;
use overwinter_lifecycle::steps::{Deadline, Observed};

use super::flaw::Flaw;
use super::invariant::Violation;
use super::line::{Accepted, accept, turn_back_for_call};
use super::owner::{self, Luck};
use super::state::{Budget, Look, NEW, State};
use super::world::{Backend, Health, Leftover};

/// What is checked, against what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    pub backend: Backend,
    pub budget: Budget,
    pub flaw: Option<Flaw>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Move {
    /// A client asks for a verb. Clients need no state of their own: none waits for another, so that
    /// two of them, or ten, are any sequence of verbs at any time.
    Ask(Request),
    /// A call of the data plane turns an idle suspend back.
    Call,
    /// The owner's next action, so.
    Owner(Luck),
    /// The time of the running operation, as this owner was granted it, is up.
    Deadline,
    /// SIGKILL of the gateway, and the next one's start.
    Crash,
    /// The compute ends by itself: killed from outside, or with its host.
    Die,
    /// Memory on disk is damaged.
    Damage,
    /// An effect whose caller has given up is carried out.
    Land,
    /// It never will be: its request is past its life, or recovery has killed who held the lock.
    Vanish,
    /// The gateway looks at a sandbox on which nothing runs.
    Look,
    /// It records what it saw.
    RecordLoss,
    DeleteAgain,
    PayDebts,
    TakeStock,
    /// Other sandboxes take what room there is, or give it back.
    Fill,
    Empty,
}

const fn suspend(depth: Option<Depth>, idle: bool) -> Request {
    Request::Suspend {
        depth,
        idle,
        reclaim: false,
    }
}

/// Every verb with every parameter that can be told apart. The policy's depth is `stop`.
pub const REQUESTS: [Request; 10] = [
    suspend(Some(Depth::Freeze), false),
    suspend(Some(Depth::Checkpoint), false),
    suspend(Some(Depth::Stop), false),
    suspend(None, false),
    suspend(None, true),
    Request::Resume {
        fallback: false,
        prefetch: false,
    },
    Request::Resume {
        fallback: true,
        prefetch: false,
    },
    Request::Start,
    Request::Delete { abandon: false },
    Request::Delete { abandon: true },
];

/// In the order in which they are tried.
pub static MOVES: LazyLock<Vec<Move>> = LazyLock::new(|| {
    let luck = Luck::ALL.into_iter().map(Move::Owner);
    let asks = REQUESTS.into_iter().map(Move::Ask);
    let rest = [
        Move::Deadline,
        Move::Land,
        Move::Vanish,
        Move::Look,
        Move::RecordLoss,
        Move::DeleteAgain,
        Move::PayDebts,
        Move::TakeStock,
        Move::Empty,
        Move::Fill,
        Move::Call,
        Move::Crash,
        Move::Die,
        Move::Damage,
    ];
    luck.chain(rest).chain(asks).collect()
});

impl Move {
    /// Whether it may happen when nobody asks for anything and nothing goes wrong any more.
    #[must_use]
    pub const fn is_calm(self) -> bool {
        match self {
            Self::Owner(Luck::Good | Luck::SeesStop)
            | Self::Deadline
            | Self::Land
            | Self::Vanish
            | Self::Look
            | Self::RecordLoss
            | Self::DeleteAgain
            | Self::PayDebts
            | Self::TakeStock
            | Self::Empty => true,
            Self::Owner(
                Luck::ReplyLost
                | Luck::RequestLost
                | Luck::Late
                | Luck::Refused
                | Luck::Silent
                | Luck::SilentDone
                | Luck::Leftover,
            )
            | Self::Ask(_)
            | Self::Call
            | Self::Crash
            | Self::Die
            | Self::Damage
            | Self::Fill => false,
        }
    }

    fn spend(self, left: &mut Budget) -> bool {
        let purse = match self {
            Self::Ask(_) | Self::Call => &mut left.verbs,
            Self::Crash => &mut left.crashes,
            Self::Owner(Luck::ReplyLost | Luck::RequestLost) => &mut left.lost,
            Self::Owner(Luck::Late) => &mut left.late,
            Self::Owner(Luck::Refused | Luck::Silent | Luck::SilentDone | Luck::Leftover)
            | Self::Die
            | Self::Damage
            | Self::Fill => &mut left.mishaps,
            Self::Owner(Luck::Good | Luck::SeesStop)
            | Self::Deadline
            | Self::Land
            | Self::Vanish
            | Self::Look
            | Self::RecordLoss
            | Self::DeleteAgain
            | Self::PayDebts
            | Self::TakeStock
            | Self::Empty => return true,
        };
        let enough = *purse > 0;
        *purse = purse.saturating_sub(1);
        enough
    }
}

impl fmt::Display for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ask(request) => write!(f, "client: {request:?}"),
            Self::Call => f.write_str("client: a call turns the idle suspend back"),
            Self::Owner(luck) => write!(f, "owner: {luck:?}"),
            Self::Deadline => f.write_str("the operation's deadline is up"),
            Self::Crash => f.write_str("SIGKILL of the gateway, restart"),
            Self::Die => f.write_str("the compute dies"),
            Self::Damage => f.write_str("the artifact is damaged"),
            Self::Land => f.write_str("the late effect lands"),
            Self::Vanish => f.write_str("the late effect is no more"),
            Self::Look => f.write_str("gateway: looks for lost compute"),
            Self::RecordLoss => f.write_str("gateway: records what it saw"),
            Self::DeleteAgain => f.write_str("gateway: tries the delete again"),
            Self::PayDebts => f.write_str("gateway: pays debts"),
            Self::TakeStock => f.write_str("gateway: takes stock"),
            Self::Fill => f.write_str("other sandboxes fill the gateway"),
            Self::Empty => f.write_str("other sandboxes make room"),
        }
    }
}

/// A move that was made.
pub struct Taken {
    pub state: State,
    /// Operations that have ended by it.
    pub ended: Vec<Operation>,
    pub recording: Option<Recording>,
}

impl Taken {
    pub(crate) fn quietly(state: State) -> Self {
        Self {
            state,
            ended: Vec::new(),
            recording: None,
        }
    }
}

/// Makes a move; none where it cannot be made.
pub fn make(state: &State, mv: Move, setup: &Setup) -> Result<Option<Taken>, Violation> {
    let mut left = state.left;
    if !mv.spend(&mut left) {
        return Ok(None);
    }
    let taken = match mv {
        Move::Owner(luck) => owner::step(state, luck, setup)?,
        Move::Ask(request) => ask(state, request, setup),
        Move::Land => land(state, setup)?,
        Move::Call
        | Move::Deadline
        | Move::Crash
        | Move::Die
        | Move::Damage
        | Move::Vanish
        | Move::Look
        | Move::RecordLoss
        | Move::DeleteAgain
        | Move::PayDebts
        | Move::TakeStock
        | Move::Fill
        | Move::Empty => by_itself(state, mv, setup),
    };
    Ok(taken.map(|mut taken| {
        taken.state.left = left;
        taken
    }))
}

fn ask(state: &State, request: Request, setup: &Setup) -> Option<Taken> {
    let mut after = state.clone();
    let issued = after.sandbox.issued;
    let mut ended = Vec::new();
    match accept(&mut after.sandbox, request, state.full, setup.flaw) {
        Accepted::Nothing => return None,
        Accepted::Begun => {
            if setup.flaw == Some(Flaw::ReuseIncarnation) {
                after.sandbox.issued = issued;
            }
            owner::first(&mut after);
        }
        Accepted::Ended(op) => ended.push(op),
        Accepted::Waits { superseded } => {
            ended.extend(superseded.map(|mut old| {
                old.step = Step::Ended;
                old.outcome = Some(Outcome::SupersededBy(NEW));
                old
            }));
            if setup.flaw == Some(Flaw::LoseTheWaiting) {
                ended.clear();
            }
        }
    }
    Some(Taken {
        state: after,
        ended,
        recording: None,
    })
}

fn land(state: &State, setup: &Setup) -> Result<Option<Taken>, Violation> {
    let Some(sent) = state.world.flying else {
        return Ok(None);
    };
    let mut after = state.clone();
    after.world.flying = None;
    let settled = after.world.newest == Some((sent.key, true));
    if settled {
        return Ok(Some(Taken::quietly(after)));
    }
    let before = after.world.computes;
    after.carry_out(sent, setup)?;
    after.unseen |= setup.backend == Backend::Fenced && before != after.world.computes;
    Ok(Some(Taken::quietly(after)))
}

fn by_itself(state: &State, mv: Move, setup: &Setup) -> Option<Taken> {
    let mut after = state.clone();
    let sandbox = &mut after.sandbox;
    let at_rest = sandbox.running.is_none();
    match mv {
        Move::Call => {
            if !turn_back_for_call(sandbox) {
                return None;
            }
        }
        Move::Deadline => {
            if at_rest || after.deadline == Deadline::Up {
                return None;
            }
            after.deadline = Deadline::Up;
        }
        Move::Crash => {
            after.look = None;
            if after.world.leftover == Leftover::Told && !after.compute_debt {
                // Whoever was told is no more.
                after.world.leftover = Leftover::Untold;
            }
            if let Some(op) = &mut sandbox.running {
                op.attempt += 1;
                if setup.flaw == Some(Flaw::ForgetIntent) {
                    op.step = Step::Begun;
                    op.intent = None;
                }
            }
            owner::first(&mut after);
        }
        Move::Die => {
            after.world.compute()?;
            after.world.end_all();
        }
        Move::Damage => {
            let mut artifacts = after.world.artifacts.iter_mut();
            let artifact = artifacts.rfind(|it| it.health == Health::Whole)?;
            artifact.health = Health::Damaged;
        }
        Move::Vanish => {
            after.world.flying.take()?;
        }
        Move::Look => {
            // Hinted at by the driver, or at a start. One that would change nothing is no move.
            let observed = after.world.observed();
            let mut would = sandbox.clone();
            let issued = sandbox.issued;
            if after.look.is_some()
                || after.world.flying.is_some()
                || observed != Observed::Absent
                || !record_loss(&mut would, observed.compute(), issued, Millis(0))
            {
                return None;
            }
            after.look = Some(Look { observed, issued });
        }
        Move::RecordLoss => {
            let Look { observed, issued } = after.look.take()?;
            let issued = if setup.flaw == Some(Flaw::StaleLoss) {
                sandbox.issued
            } else {
                issued
            };
            record_loss(sandbox, observed.compute(), issued, Millis(0));
        }
        Move::DeleteAgain => {
            // Half a minute later: what was on its way has landed or not.
            let due = at_rest && sandbox.desired == Desired::Deleted;
            if !due
                || sandbox.tombstone_at.is_some()
                || after.world.flying.is_some()
                || setup.flaw == Some(Flaw::GiveUpDelete)
            {
                return None;
            }
            return ask(state, Request::Delete { abandon: false }, setup);
        }
        Move::PayDebts => {
            if !after.compute_debt && !after.storage_debt && after.artifact_debts.is_empty() {
                return None;
            }
            let owed = std::mem::take(&mut after.artifact_debts);
            let artifacts = &mut after.world.artifacts;
            artifacts.retain(|artifact| !owed.contains(&artifact.written_by));
            if after.storage_debt {
                after.world.storage = false;
            }
            if after.compute_debt {
                after.world.leftover = Leftover::Nothing;
            }
            (after.compute_debt, after.storage_debt) = (false, false);
            sandbox.compute_debts = 0;
        }
        Move::TakeStock => {
            if sandbox.tombstone_at.is_none()
                || after.world.flying.is_some()
                || after.world.compute().is_none() && !after.world.storage
            {
                return None;
            }
            after.world.end_all();
            after.world.storage = false;
        }
        Move::Fill if !after.full => after.full = true,
        Move::Empty if after.full => after.full = false,
        Move::Fill | Move::Empty => return None,
        Move::Ask(_) | Move::Owner(_) | Move::Land => return None,
    }
    Some(Taken::quietly(after))
}
