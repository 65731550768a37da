-- slicewise_change.lua: decides which changes of a job its owner may not make. slicewise.lua loads
-- it, from its own directory, with slicewise_request.lua and slicewise_bounds.lua.

local request, bounds = ...
local text, number = request.text, request.number
local NO_VAL, NO_VAL16, INFINITE = request.NO_VAL, request.NO_VAL16, request.INFINITE

local M = {}

--- The beginning of an admitted job's tag, in admin_comment.
M.TAG = "slicewise:1 token="

local OWNERS_MAY_NOT_CHANGE = {
    "qos", "account", "partition", "gres", "tres_per_node", "tres_per_job", "tres_per_socket",
    "tres_per_task", "array_inx", "admin_comment", "req_nodes", "cpus_per_tres", "mem_per_tres",
}
-- These change how many GPUs and CPUs a job gets, which is not checked again; job_rec does not show
-- what they were. Each with its value for unset.
local TASKS = {
    num_tasks = NO_VAL, ntasks_per_node = NO_VAL16, ntasks_per_socket = NO_VAL16,
    ntasks_per_tres = NO_VAL16, cpus_per_task = NO_VAL16,
}
-- 0 counts as unset here, too: Slurm 22.05 sends it for ntasks_per_board.
local SHAPES = {
    "ntasks_per_core", "ntasks_per_board", "pn_min_cpus", "sockets_per_node", "cores_per_socket",
    "threads_per_core",
}
-- Said with a refusal, since Slurm has set the throttle of the whole array before it asks.
local THROTTLE = " Its throttle is set all the same: Slurm does that before it asks."
local THROTTLE_OF_SERVICE = " A throttle is taken off again within five minutes."
local SIZES = { "min_nodes", "max_nodes", "min_cpus" }
local MEMORY = { "min_mem_per_node", "min_mem_per_cpu" }

local function is_set(value, unset)
    return type(value) == "number" and value ~= unset
end

local function is_slot(comment, tag_start)
    return comment:find(" service=", tag_start, true) ~= nil
end

local function may_not_release(comment, tag_start)
    return is_slot(comment, tag_start) or comment:find(" undecided", tag_start, true)
end

-- Whether a new priority is forbidden. An owner may release a job that the owner held.
local function is_forbidden_priority(priority, comment, tag_start)
    if priority == nil or priority == NO_VAL or priority == 0 then
        return false
    end
    return priority ~= INFINITE or may_not_release(comment, tag_start) ~= nil
end

-- Whether a job is in slurmctld's states RUNNING or SUSPENDED, above which flags stand.
local function has_begun(job_rec)
    local state = (number(job_rec.job_state, NO_VAL) or 0) % 256
    return state == 1 or state == 2
end

-- The field by which a job that has begun would give nodes back: that would end the accounting
-- record by which its run is charged.
local function shrinking(job_desc, job_rec)
    if not has_begun(job_rec) then
        return nil
    end
    for _, field in ipairs({ "min_nodes", "max_nodes" }) do
        if is_set(job_desc[field], NO_VAL) then
            return field
        end
    end
    return text(job_desc.req_nodes) and "req_nodes"
end

-- What a job has of this. Without a maximum it has as few nodes as it may; with one Slurm gives it
-- as many as are free.
local function before(field, job_rec)
    local size = job_rec[field] or 0
    return field == "max_nodes" and size == 0 and job_rec.min_nodes or size
end

-- Whether a change asks for whole nodes, or nodes kept from others. An owner may let others share
-- the job's CPUs.
local function claims_nodes(job_desc)
    return job_desc.shared == 0 or bounds.keeps_nodes(job_desc.shared)
end

-- The field by which a job would grow; nil if none. `scontrol update NumNodes=ALL` sends INFINITE,
-- and memory 0 is all that the node has.
local function growth(job_desc, job_rec)
    for field, unset in pairs(TASKS) do
        if is_set(job_desc[field], unset) then
            return field
        end
    end
    for _, field in ipairs(SHAPES) do
        if is_set(job_desc[field], NO_VAL16) and job_desc[field] ~= 0 then
            return field
        end
    end
    for _, field in ipairs(SIZES) do
        if is_set(job_desc[field], NO_VAL) and job_desc[field] > before(field, job_rec) then
            return field
        end
    end
    for _, field in ipairs(MEMORY) do
        local mib, has = job_desc[field], job_rec[field]
        local is_more = mib == 0 or (type(mib) == "number" and mib > (has or 0))
        -- Its memory per GPU is not in these fields.
        local has_per_gpu = text(job_rec.mem_per_tres) ~= nil
        if is_more and (has_per_gpu or (mib ~= has and has ~= 0)) then
            return field
        end
    end
    return claims_nodes(job_desc) and "shared" or nil
end

-- Whether a change sets the array's throttle, and no other indices.
local function sets_throttle(job_desc)
    return (text(job_desc.array_inx) or ""):find("^%%?%d+$") ~= nil
end

-- The first field in the change that the owner may not change; nil if there is none. The throttle
-- of a plain array only orders what quota allows.
local function forbidden_change(job_desc, job_rec, comment, tag_start)
    local is_his = not is_slot(comment, tag_start) and sets_throttle(job_desc)
    for _, field in ipairs(OWNERS_MAY_NOT_CHANGE) do
        if job_desc[field] ~= nil and not (is_his and field == "array_inx") then
            return field
        end
    end
    if is_forbidden_priority(job_desc.priority, comment, tag_start) then
        return "priority"
    elseif is_slot(comment, tag_start) and is_set(job_desc.time_limit, NO_VAL) then
        -- A slot's time limit is its lease, which the daemon gives.
        return "time_limit"
    elseif is_slot(comment, tag_start) and job_desc.requeue == 0 then
        -- A slot gives its GPU back by a requeue.
        return "requeue"
    end
    return shrinking(job_desc, job_rec) or growth(job_desc, job_rec)
end

local function is_ours(qos)
    return qos:find("slicewise_", 1, true) == 1
end

-- Whether the job's QOS will be one that preempts jobs on borrowed quota.
local function preempts(job_desc, job_rec)
    local qos = (text(job_desc.qos) or text(job_rec.qos) or ""):lower()
    return is_ours(qos) and not qos:find("_borrowed$")
end

-- Whether a change of EndTime would leave run-minutes behind. Slurm shortens the job's time limit
-- by EndTime, and goes on counting the difference among the run-minutes of the job's QOS, also when
-- the job is gone. Budgets are made of these run-minutes.
local function leaves_minutes_behind(job_desc, job_rec, tag_start)
    local is_counted = tag_start or is_ours((text(job_rec.qos) or ""):lower())
    return is_counted and type(job_desc.end_time) == "number" and job_desc.end_time > 0
end

-- Only tres_fmt_req_str shows the GPUs of --ntasks-per-gpu.
local function gres_of_job(job_rec)
    return request.gres_of(job_rec) .. "," .. (text(job_rec.tres_fmt_req_str) or "")
end

-- Whether a job has GPUs. "gpu:1g.10gb:0" is none; a text that is too long is not read.
local function holds_gpus(job_rec)
    local count = 0
    for _, gpu in ipairs(request.oversized(job_rec) and {} or request.gpus_of(gres_of_job(job_rec))) do
        count = count + gpu.count
    end
    return count > 0
end

-- The field by which a job that was not admitted would get GPUs of a managed partition, or keep
-- other jobs from them; nil if none.
local function smuggling_change(job_desc, job_rec, is_managed, beside_among, rules)
    local long = request.oversized(job_desc)
    if long then
        return long
    end
    local partition = text(job_desc.partition)
    if shrinking(job_desc, job_rec) and is_managed(text(job_rec.partition)) then
        return shrinking(job_desc, job_rec)
    end
    -- One of several reservations may bring its own partition.
    local reservations = (text(job_desc.reservation) or ""):find(",", 1, true) and "reservation"
    local move = partition and "partition" or reservations
    local target = partition or text(job_rec.partition)
    local is_beside = beside_among(target) ~= nil
    if not (reservations or is_beside or is_managed(target)) then
        return nil
    elseif request.gpus_among(request.gres_of(job_desc)) or request.tasks_per_gpu(job_desc) then
        return "gres"
    elseif claims_nodes(job_desc) then
        return "shared"
    elseif (move or text(job_desc.qos)) and preempts(job_desc, job_rec)
        and (is_beside or not holds_gpus(job_rec)) then
        return "qos"
    elseif not move then
        return nil
    elseif (rules.without_gpu == "refuse" and not is_beside) or request.oversized(job_rec) then
        return move
    end
    return request.gpus_among(gres_of_job(job_rec)) and move or nil
end

--- What is wrong with a change (field, code, message, hint); nil if nothing is. `is_managed` says
-- whether a partition is managed, `beside_among` which one is on nodes of one that is, `rules` are
-- slicewise.lua's configuration.
function M.objection(job_desc, job_rec, is_managed, beside_among, rules)
    local comment = text(job_rec.admin_comment) or ""
    local tag_start = comment:find(M.TAG, 1, true)
    if leaves_minutes_behind(job_desc, job_rec, tag_start) then
        return {
            field = "end_time",
            code = "SW-RESUBMIT",
            message = "Slurm would count the time between EndTime and the job's time limit against "
                .. "its QOS for good.",
            hint = "Write TimeLimit= instead.",
        }
    elseif not tag_start then
        local field = smuggling_change(job_desc, job_rec, is_managed, beside_among, rules)
        return field and {
            field = field,
            code = "SW-RESUBMIT",
            message = "This job was not admitted to GPUs: a change of its " .. field
                .. " can't bring it to any.",
            hint = "Cancel it and submit it again, with the GPUs and the partition that it needs.",
        }
    end
    local field = forbidden_change(job_desc, job_rec, comment, tag_start)
    local beside = is_slot(comment, tag_start) and THROTTLE_OF_SERVICE or THROTTLE
    return field and {
        field = field,
        code = "SW-RESUBMIT",
        message = "Slicewise manages this job: its " .. field .. " can't be changed by its owner."
            .. (sets_throttle(job_desc) and beside or ""),
        hint = "Cancel it and submit it again, or ask for slots through its service.",
    }
end

return M
