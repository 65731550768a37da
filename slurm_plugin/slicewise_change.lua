-- slicewise_change.lua: which changes of a job are not its owner's to make. slicewise.lua loads it,
-- from its own directory, with slicewise_request.lua.

local request = ...
local text, number = request.text, request.number
local NO_VAL, NO_VAL16, INFINITE = request.NO_VAL, request.NO_VAL16, request.INFINITE

local M = {}

--- How the mark of an admitted job begins, in admin_comment.
M.TAG = "slicewise:1 token="

local OWNERS_MAY_NOT_CHANGE = {
    "qos", "account", "partition", "gres", "tres_per_node", "tres_per_job", "tres_per_socket",
    "tres_per_task", "array_inx", "admin_comment",
}
-- How many GPUs these mean nobody weighs again; job_rec does not tell what they were.
local TASKS = {
    num_tasks = NO_VAL, ntasks_per_node = NO_VAL16, ntasks_per_socket = NO_VAL16,
    ntasks_per_tres = NO_VAL16, cpus_per_task = NO_VAL16,
}
local SIZES = { "min_nodes", "max_nodes", "min_cpus" }

local function may_not_release(comment, tag_start)
    return comment:find(" service=", tag_start, true) or comment:find(" undecided", tag_start, true)
end

-- Releasing a job that its owner held is fine.
local function is_forbidden_priority(priority, comment, tag_start)
    if priority == nil or priority == NO_VAL or priority == 0 then
        return false
    end
    return priority ~= INFINITE or may_not_release(comment, tag_start) ~= nil
end

-- The field by which a job would grow; nil if none. `scontrol update NumNodes=ALL` is INFINITE. A
-- maximum of 0 is none.
local function growth(job_desc, job_rec)
    for field, unset in pairs(TASKS) do
        if number(job_desc[field], unset) then
            return field
        end
    end
    for _, field in ipairs(SIZES) do
        local size, before = job_desc[field], job_rec[field] or 0
        local is_set = type(size) == "number" and size ~= NO_VAL
        if is_set and size > before and not (field == "max_nodes" and before == 0) then
            return field
        end
    end
    return job_desc.shared == 0 and "shared" or nil
end

-- The first thing in the change that is not the owner's to do; nil if there is none.
local function forbidden_change(job_desc, job_rec, comment, tag_start)
    for _, field in ipairs(OWNERS_MAY_NOT_CHANGE) do
        if job_desc[field] ~= nil then
            return field
        end
    end
    if is_forbidden_priority(job_desc.priority, comment, tag_start) then
        return "priority"
    end
    return growth(job_desc, job_rec)
end

-- The field by which a job that nobody admitted would get GPUs of a managed partition; nil if none.
-- Only tres_fmt_req_str tells of the GPUs of --ntasks-per-gpu.
local function smuggling_change(job_desc, job_rec, is_managed)
    local long = request.oversized(job_desc)
    if long then
        return long
    end
    local partition = text(job_desc.partition)
    -- One of several reservations may bring its own partition.
    local reservations = (text(job_desc.reservation) or ""):find(",", 1, true) and "reservation"
    local move = partition and "partition" or reservations
    if not reservations and not is_managed(partition or text(job_rec.partition)) then
        return nil
    elseif request.gpus_among(request.gres_of(job_desc)) or request.tasks_per_gpu(job_desc) then
        return "gres"
    elseif job_desc.shared == 0 then
        return "shared"
    elseif not move then
        return nil
    elseif request.oversized(job_rec) then
        return move
    end
    local has = request.gres_of(job_rec) .. "," .. (text(job_rec.tres_fmt_req_str) or "")
    return request.gpus_among(has) and move or nil
end

--- What is wrong with a change (field, code, message, hint); nil if nothing is. `is_managed` says
-- whether a partition is.
function M.objection(job_desc, job_rec, is_managed)
    local comment = text(job_rec.admin_comment) or ""
    local tag_start = comment:find(M.TAG, 1, true)
    if not tag_start then
        local field = smuggling_change(job_desc, job_rec, is_managed)
        return field and {
            field = field,
            code = "SW-NOT-ADMITTED",
            message = "This job was not admitted to GPUs: its " .. field .. " can't bring it any.",
            hint = "Cancel it and submit it anew, with the GPUs and the partition that it needs.",
        }
    end
    local field = forbidden_change(job_desc, job_rec, comment, tag_start)
    return field and {
        field = field,
        code = "SW-MANAGED-JOB",
        message = "Slicewise manages this job: its " .. field .. " is not its owner's to change.",
        hint = "Cancel it and submit it anew, or ask for slots by way of its service.",
    }
end

return M
