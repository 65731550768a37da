-- Reads a case (JSON) from stdin, makes its calls of slicewise.lua with stubs of slurmctld's
-- `slurm` table, one after the other, and prints what each did (JSON). Before a call it may sleep
-- (`sleep_s`) and set the clock (`shift_s`, of all calls that follow).
local cjson = require "cjson"
local socket = require "socket"
local case = cjson.decode(io.read("*a"))
local told, logged, read_fields

slurm = {
    SUCCESS = 0,
    ERROR = -1,
    ESLURM_ACCESS_DENIED = 2002,
    ESLURM_ACCOUNTING_POLICY = 2050,
    ESLURM_INVALID_QOS = case.slurm ~= "22.05" and 2066 or nil,
    log_user = function(format, ...) told[#told + 1] = string.format(format, ...) end,
    log_info = function(format, ...) logged[#logged + 1] = string.format(format, ...) end,
    log_error = function(format, ...) io.stderr:write(string.format(format, ...), "\n") end,
}

local clock, shift_s = socket.gettime, 0
socket.gettime = function() return clock() + shift_s end

-- As slurmctld puts it before a GRES that is set.
local PREFIX = case.slurm == "22.05" and "gres:" or "gres/"

-- Slurm gives userdata-like records: writes are kept, forbidden reads end slurmctld.
local function record(fields)
    local values = {}
    for key, value in pairs(fields or {}) do
        values[key] = value ~= cjson.null and value or nil
    end
    return setmetatable({}, {
        __index = function(_, key)
            read_fields[key] = true
            if case.raise_on_read == key then
                error("no field " .. key)
            end
            return values[key]
        end,
        __newindex = function(_, key, value)
            if key == "gres" and value ~= "" then
                value = PREFIX .. value
            end
            values[key] = value ~= "" and value or nil
        end,
    }), values
end

local module = dofile(case.module)
module.configure(case.configure)

local function make(call)
    told, logged, read_fields = {}, {}, {}
    socket.sleep(call.sleep_s or 0)
    shift_s = shift_s + (call.shift_s or 0)
    local job_desc, values = record(call.job_desc)
    local started_s, worked_s = clock(), os.clock()
    local code
    if call.call == "job_submit" then
        code = module.job_submit(job_desc, case.part_list, call.uid)
    else
        code = module.job_modify(job_desc, record(call.job_rec), case.part_list, call.uid)
    end
    -- An empty table would be an object or a list as cjson likes: joined text is unambiguous.
    return {
        code = code,
        elapsed_s = clock() - started_s,
        processor_s = os.clock() - worked_s,
        told = table.concat(told, "\n"),
        logged = table.concat(logged, "\n"),
        job_desc = values,
        read_assoc_qos = read_fields.assoc_qos == true,
    }
end

for _, call in ipairs(case.calls) do
    print(cjson.encode(make(call)))
end
