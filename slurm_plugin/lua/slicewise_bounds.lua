-- slicewise_bounds.lua: finds jobs of managed partitions that would keep other jobs from GPUs for
-- which they are not charged. slicewise.lua loads it from its own directory, with
-- slicewise_request.lua. These rules are fixed and need no daemon, so they hold while the daemon is
-- away, too.

local request = ...
local text, number, digits = request.text, request.number, request.digits
local NO_VAL, NO_VAL16 = request.NO_VAL, request.NO_VAL16
-- Slurm's GRES_ENFORCE_BIND, among a job's bitflags.
local ENFORCE_BINDING = 16

local M = {}

local function without_gpu(partition)
    return {
        code = "SW-WITHOUT-GPU",
        message = ("Partition %s is for jobs that ask for GPUs."):format(partition or "(none)"),
        hint = "Ask for GPUs (--gres=gpu:TYPE:N), or name another partition.",
    }
end

-- A job that names 0 GPUs would start above every limit: with --ntasks-per-gpu Slurm adds GPUs of
-- no type to it, and without, the job would preempt jobs on borrowed quota just for CPUs.
local NONE_OF_THEM = {
    code = "SW-WITHOUT-GPU",
    message = "The job names GPUs, and asks for 0 of them.",
    hint = "Ask for one or more, or name none.",
}

-- slurmctld 22.05 ends when it starts a job on no node, and again after each restart.
local NO_NODE = {
    code = "SW-JOB-OPTION",
    message = "The job asks for 0 nodes at least, and GPUs need one.",
    hint = "Write --nodes=1 or more, or leave it out.",
}

local KEPT_FOR_ONE = {
    code = "SW-JOB-OPTION",
    message = "--exclusive=user and =mcs keep other users from GPUs that are not charged.",
    hint = "Leave it out, or write --exclusive: then all GPUs of the nodes are charged.",
}

local function beside(partition, managed)
    return {
        code = "SW-JOB-OPTION",
        message = ("Partition %s is not managed, but shares nodes with one that is: GPUs there "
            .. "would not be charged."):format(partition),
        hint = ("Ask for GPUs in a managed partition (--partition=%s), and for no whole nodes "
            .. "here."):format(table.concat(managed or {}, " or ")),
    }
end

local function beyond_share(what, asked, most)
    return {
        code = "SW-SHARE",
        message = ("The job asks for %s %s; with its GPUs it may have %s."):format(
            digits(asked), what, digits(math.floor(most))),
        hint = "Ask for fewer, or for more GPUs.",
    }
end

-- The share of one GPU of that type; for a type that is not chosen yet, the smallest share.
local function share_of(kind, shares, what)
    local share = shares[kind]
    if share or kind ~= nil and kind ~= "auto" then
        return share and share[what]
    end
    local least
    for _, one in pairs(shares) do
        if one[what] and (not least or one[what] < least) then
            least = one[what]
        end
    end
    return least
end

-- The share of all GPUs of a text together, and how many GPUs these are; nil as the share if a type
-- has none configured: then the job is not bound.
local function share_of_text(asked, shares, what)
    local total, gpus = 0, 0
    for _, gpu in ipairs(request.gpus_of(asked)) do
        local share = share_of(gpu.kind, shares, what)
        total = share and total and total + share * gpu.count
        gpus = gpus + gpu.count
    end
    return total, gpus
end

local function counts(job_desc)
    local nodes = math.max(number(job_desc.min_nodes, NO_VAL) or 1, 1)
    local per_node = number(job_desc.ntasks_per_node, NO_VAL16) or 0
    local tasks = math.max(number(job_desc.num_tasks, NO_VAL) or 1, nodes * per_node, 1)
    return nodes, tasks
end

-- The share of all of the job's GPUs, and how many they are. The requests per node, task and job
-- must all hold: the largest counts.
local function share_of_job(question, nodes, tasks, shares, what, job)
    local asked = {
        { question.gres, nodes }, { question.tres_per_job, 1 },
        { question.tres_per_socket, nodes }, { question.tres_per_task, tasks },
    }
    local most, gpus = 0, 0
    for _, field in pairs(asked) do
        if field[1] then
            local share, count = share_of_text(field[1], shares, what)
            most = share and most and math.max(most, share * field[2])
            gpus = math.max(gpus, count * field[2])
        end
    end
    if gpus == 0 then
        -- The daemon gives the job its GPUs: one for its need, or those of its service.
        local share, count = share_of(job.profile, shares, what), (job.gpus or 1) * nodes
        return share and share * count, count
    end
    return most, gpus
end

-- Whether a job names GPUs and asks for none, as by "gpu:1g.10gb:0".
local function asks_for_none(question)
    local asked = request.gres_of(question)
    local count = 0
    for _, gpu in ipairs(request.gpus_of(asked)) do
        count = count + gpu.count
    end
    return count == 0 and request.gpus_among(asked) ~= nil and not question.exclusive
end

-- The number in --cpus-per-gpu or --mem-per-gpu ("gres:gpu:4"); 0 if unset.
local function per_gpu(value)
    return tonumber((text(value) or ""):match("(%d+)$")) or 0
end

-- The CPUs in --tres-per-task=cpu:16,gres/gpu:1 (since Slurm 23.11); 0 if it has none. "1k" is
-- 1024.
local function cpus_among(asked)
    local most = 0
    for part in (text(asked) or ""):lower():gmatch("[^,]+") do
        local count, unit = part:match("^%s*cpu%s*[:=]%s*(%d+)(%a?)")
        if count then
            most = math.max(most, tonumber(count) * (unit == "" and 1 or 1024))
        end
    end
    return most
end

-- The most CPUs that a core has where the job's GPUs are; anywhere, if their type is not known.
local function threads_of(question, shares, profile)
    local kinds = {}
    for _, gpu in ipairs(request.gpus_of(request.gres_of(question))) do
        kinds[gpu.kind or "auto"] = true
    end
    if next(kinds) == nil then
        kinds[profile or "auto"] = true
    end
    local most = 1
    for kind, share in pairs(shares) do
        if kinds[kind] or kinds.auto then
            most = math.max(most, share.threads or 1)
        end
    end
    return most
end

-- The CPUs with the rest of their cores: Slurm allots whole cores, also to a job that uses one
-- thread of each (--hint=nomultithread) or has one task on it.
local function with_whole_cores(job_desc, cpus, tasks, per_task, threads)
    local used = number(job_desc.threads_per_core, NO_VAL16) or 0
    local tasks_per_core = number(job_desc.ntasks_per_core, NO_VAL16) or 0
    local most = cpus
    if used > 0 and used < threads then
        most = math.ceil(cpus / used) * threads
    end
    if tasks_per_core > 0 then
        local cores = math.max(1, math.ceil(per_task * tasks_per_core / threads))
        most = math.max(most, math.ceil(tasks / tasks_per_core) * cores * threads)
    end
    return most
end

local function cpus_of(job_desc, nodes, tasks, gpus, threads)
    local per_task = math.max(
        number(job_desc.cpus_per_task, NO_VAL16) or 1, cpus_among(job_desc.tres_per_task), 1)
    local cpus = math.max(
        number(job_desc.min_cpus, NO_VAL) or 1, tasks * per_task,
        nodes * (number(job_desc.pn_min_cpus, NO_VAL16) or 0),
        gpus * per_gpu(job_desc.cpus_per_tres))
    return with_whole_cores(job_desc, cpus, tasks, per_task, threads)
end

-- Whether a job has --gres-flags=enforce-binding: on a node with GPUs that are bound to no cores it
-- takes every free CPU, whatever was asked for. Lua loses the low bits of a number above 2^53.
local function takes_bound_cpus(job_desc)
    local flags = job_desc.bitflags
    return type(flags) == "number"
        and (flags >= 2 ^ 53 or math.floor(flags / ENFORCE_BINDING) % 2 == 1)
end

-- The job's memory in MiB; a request of 0 is all memory of the nodes. Without a request the job
-- gets the partition's default, or the share.
local function memory_of(job_desc, nodes, cpus, gpus)
    local per_node, per_cpu = job_desc.min_mem_per_node, job_desc.min_mem_per_cpu
    if per_node == 0 or per_cpu == 0 then
        return math.huge
    end
    return math.max(
        (per_node or 0) * nodes, (per_cpu or 0) * cpus, gpus * per_gpu(job_desc.mem_per_tres))
end

local function share_exceeded(job_desc, question, shares, job)
    local nodes, tasks = counts(job_desc)
    local most_cpus, gpus = share_of_job(question, nodes, tasks, shares, "cpus", job)
    local threads = threads_of(question, shares, job.profile)
    local cpus = cpus_of(job_desc, nodes, tasks, gpus, threads)
    if most_cpus and cpus > most_cpus then
        return beyond_share("CPUs", cpus, most_cpus)
    elseif most_cpus and takes_bound_cpus(job_desc) then
        return {
            code = "SW-SHARE",
            message = "--gres-flags=enforce-binding can take all CPUs of a node.",
            hint = ("Leave it out: with its GPUs the job may have %s CPUs."):format(
                digits(math.floor(most_cpus))),
        }
    end
    local most_mib = share_of_job(question, nodes, tasks, shares, "memory_mib", job)
    local mib = memory_of(job_desc, nodes, cpus, gpus)
    if most_mib and mib == math.huge then
        return {
            code = "SW-SHARE",
            message = "--mem=0 is all memory of a node.",
            hint = ("Write how much it needs: with its GPUs it may have %s MiB."):format(
                digits(math.floor(most_mib))),
        }
    elseif most_mib and mib > most_mib then
        return beyond_share("MiB of memory", mib, most_mib)
    end
    return nil
end

-- Whether a job is bound to the share of its GPUs. Root's jobs are not.
local function is_bound(job_desc, question, job, rules)
    return rules.shares and job_desc.user_id ~= 0 and not question.exclusive
        and (job.has_gpus or job.is_service) and not asks_for_none(question)
end

-- Whether this is an amount of memory: Slurm's value for unset is above what any node has, and 0 is
-- none, too.
local function is_amount(mib)
    return type(mib) == "number" and mib > 0 and mib < 2 ^ 53
end

-- Whether all these partitions have a default of memory. For a partition that this user can't see
-- that is unknown. Slurm shows DefMemPerGPU to no script.
local function have_default_memory(partitions, part_list)
    for name in (partitions or ""):gmatch("[^,]+") do
        local partition = (part_list or {})[name] or {}
        if not (is_amount(partition.def_mem_per_node) or is_amount(partition.def_mem_per_cpu)) then
            return false
        end
    end
    return partitions ~= nil
end

-- The smallest share of one of these GPUs; nil if one has none.
local function least_share(asked, shares, what)
    local least = math.huge
    for _, gpu in ipairs(request.gpus_of(asked)) do
        local share = share_of(gpu.kind, shares, what)
        least = share and least and math.min(least, share)
    end
    return least
end

--- Give a job that names no memory its GPUs' share: without a default of its partition Slurm gives
-- it all that the node has. `part_list` is slurmctld's.
function M.add_memory(job_desc, question, job, rules, part_list)
    local names_any = job_desc.min_mem_per_node or job_desc.min_mem_per_cpu
        or text(job_desc.mem_per_tres)
    if names_any or not is_bound(job_desc, question, job, rules)
        or have_default_memory(question.partition, part_list) then
        return
    end
    local spread = {}
    for _, field in ipairs(request.REQUEST_FIELDS) do
        spread[#spread + 1] = question[field]
    end
    if request.gpus_among(table.concat(spread, ",")) then
        -- Slurm chooses how many of the GPUs are on one node.
        local mib = least_share(request.gres_of(question), rules.shares, "memory_mib")
        if mib then
            job_desc.mem_per_tres = ("%sgpu:%s"):format(
                request.gres_prefix(job_desc), digits(math.floor(mib)))
        end
        return
    end
    local mib, gpus = share_of_text(question.gres or "", rules.shares, "memory_mib")
    if gpus == 0 then
        local share = share_of(job.profile, rules.shares, "memory_mib")
        mib = share and share * (job.gpus or 1)
    end
    if mib then
        job_desc.min_mem_per_node = math.floor(mib)
    end
end

--- Whether this value of `shared` keeps a node for one user's jobs, or for those of one security
-- label. Such a job is not charged for the whole node: Slurm allots the GPUs asked for. (1 shares,
-- 0 is a whole node with all of its GPUs.)
function M.keeps_nodes(shared)
    return type(shared) == "number" and shared > 1 and shared < NO_VAL16
end

--- What is wrong with a submission to a partition that is not managed, on nodes of one that is
-- (code, message, hint); nil if nothing is. `job` has `asks_for_gpus`; `managed` are those where
-- GPUs are charged.
function M.objection_beside(job_desc, partition, job, managed)
    if job_desc.user_id == 0 then
        return nil
    elseif M.keeps_nodes(job_desc.shared) then
        return KEPT_FOR_ONE
    end
    return (job.asks_for_gpus or job.is_service) and beside(partition, managed) or nil
end

--- What is wrong with a submission to a managed partition (code, message, hint); nil if nothing is.
-- `job` has `has_gpus`, `is_service`, `profile` (the type of a service's GPUs, if its directives
-- name it) and `gpus` (how many of them on each node), `rules` are slicewise.lua's configuration. Root's jobs are exempt: surveying a node's
-- GPUs and repartitioning them are jobs without GPUs, too.
function M.objection(job_desc, question, job, rules)
    if job_desc.user_id == 0 then
        return nil
    elseif M.keeps_nodes(job_desc.shared) then
        return KEPT_FOR_ONE
    elseif asks_for_none(question) then
        return NONE_OF_THEM
    elseif not (job.has_gpus or job.is_service) then
        return rules.without_gpu == "refuse" and without_gpu(question.partition) or nil
    elseif question.min_nodes == 0 then
        return NO_NODE
    elseif is_bound(job_desc, question, job, rules) then
        return share_exceeded(job_desc, question, rules.shares, job)
    end
    return nil
end

return M
